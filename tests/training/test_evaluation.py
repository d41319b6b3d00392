"""Measuring: means over all answers of all batches, nothing learned, nothing dropped."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.mlm import MlmObjective
from bertworks.sampling.batch import Batch
from bertworks.training.evaluation import evaluate

SIZES = BertConfig(60, 16, 1, 2, 32, 16)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def module() -> MlmObjective:
    generator = torch.Generator().manual_seed(0)
    return MlmObjective(Bert(SIZES, generator), generator)


def rows(first: int, last: int, hidden: Sequence[int]) -> Batch:
    """Rows first..last of ten that are always the same; `hidden` says how many places each of the ten hides."""
    generator = torch.Generator().manual_seed(7)
    ids, targets = (torch.randint(1, 60, (10, 12), generator=generator) for _ in range(2))
    places = [(row - first) * 12 + at for row in range(first, last) for at in range(hidden[row])]
    wanted = torch.cat([targets[row, : hidden[row]] for row in range(first, last)])
    labels = {"pair": torch.arange(first, last) % 2}
    own = ids[first:last]
    lengths = torch.full((last - first,), 12)
    return Batch(own, torch.zeros_like(own), lengths, "both", torch.tensor(places), wanted, labels)


HIDDEN = (1, 12, 1, 1, 5, 1, 1, 9, 1, 1)


def test_scores_do_not_depend_on_how_rows_are_batched(module: MlmObjective):
    whole = evaluate(module, [rows(0, 10, HIDDEN)])
    parts = evaluate(module, (rows(first, last, HIDDEN) for first, last in ((0, 1), (1, 7), (7, 10))))
    for name in ("masked", "pair"):
        assert abs(whole.losses[name] - parts.losses[name]) < 1e-6
        assert whole.accuracies[name] == parts.accuracies[name]


def test_accuracy_is_the_share_of_right_answers(module: MlmObjective):
    """Every piece is pushed towards 17 and every pair towards 1; 17 is asked for at 3 places of 12."""
    with torch.no_grad():
        module.mlm_head.bias[17] = 100.0
        assert module.pair_head is not None
        module.pair_head.score.bias.copy_(torch.tensor([-100.0, 100.0]))
    drawn = rows(0, 3, (4,) * 10)
    targets = torch.tensor([17, 2, 17, 3, 4, 5, 6, 7, 8, 9, 10, 17])
    labels = {"pair": torch.tensor([1, 0, 0])}
    batch = Batch(drawn.input_ids, drawn.token_type_ids, drawn.lengths, "both", drawn.positions, targets, labels)
    scores = evaluate(module, [batch])
    assert scores.accuracies == {"masked": 0.25, "pair": pytest.approx(1 / 3)}
    # A wrong pair costs 200, a right one nothing; a wrong piece about 100, to within the small drawn scores.
    assert scores.losses["pair"] == pytest.approx(400 / 3, abs=1.0)
    assert scores.losses["masked"] == pytest.approx(75.0, abs=1.0)


def test_nothing_is_learned_and_nothing_dropped_and_the_mode_comes_back(module: MlmObjective):
    before = {name: values.clone() for name, values in module.state_dict().items()}
    for training in (True, False):
        module.train(training)
        one, again = (evaluate(module, [rows(0, 10, HIDDEN)]) for _ in range(2))
        assert one == again
        assert module.training is training
        assert module.encoder.layers[0].training_settings is training
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_mode_comes_back_even_after_a_failure(module: MlmObjective):
    def broken() -> Iterator[Batch]:
        yield rows(0, 2, HIDDEN)
        raise RuntimeError("no more rows")

    module.train()
    with pytest.raises(RuntimeError, match="no more rows"):
        evaluate(module, broken())
    assert module.training


def test_without_batches_there_are_no_scores(module: MlmObjective):
    scores = evaluate(module, [])
    assert (scores.losses, scores.accuracies) == ({}, {})
