"""Evaluation: means over all targets of all batches, without training and without dropout."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.batch import Batch
from bertworks.training.evaluation import evaluate

CONFIG = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def module() -> MlmModule:
    generator = torch.Generator().manual_seed(0)
    return MlmModule(Bert(CONFIG, generator), generator)


def make_batch(first: int, last: int, num_masked: Sequence[int]) -> Batch:
    """Sequences first..last of ten fixed ones; `num_masked` is the number of masked tokens of each of the ten."""
    generator = torch.Generator().manual_seed(7)
    input_ids, all_targets = (torch.randint(1, 60, (10, 12), generator=generator) for _ in range(2))
    indices = range(first, last)
    positions = [(index - first) * 12 + position for index in indices for position in range(num_masked[index])]
    targets = torch.cat([all_targets[index, : num_masked[index]] for index in indices])
    labels = {"nsp": torch.arange(first, last) % 2}
    input_ids = input_ids[first:last]
    lengths = torch.full((last - first,), 12)
    return Batch(
        input_ids=input_ids,
        token_type_ids=torch.zeros_like(input_ids),
        lengths=lengths,
        attention="bidirectional",
        positions=torch.tensor(positions),
        targets=targets,
        labels=labels,
    )


NUM_MASKED = (1, 12, 1, 1, 5, 1, 1, 9, 1, 1)


def test_scores_do_not_depend_on_batching(module: MlmModule):
    single = evaluate(module, [make_batch(0, 10, NUM_MASKED)])
    split = evaluate(module, (make_batch(first, last, NUM_MASKED) for first, last in ((0, 1), (1, 7), (7, 10))))
    for name in ("mlm", "nsp"):
        assert abs(single.losses[name] - split.losses[name]) < 1e-6
        assert single.accuracies[name] == split.accuracies[name]


def test_accuracy_is_the_ratio_of_correct_predictions(module: MlmModule):
    """Biases force the prediction of token 17 and of pair label 1; 17 is the target at 3 of 12 positions."""
    with torch.no_grad():
        module.mlm_head.bias[17] = 100.0
        assert module.pair_head is not None
        module.pair_head.score.bias.copy_(torch.tensor([-100.0, 100.0]))
    random_batch = make_batch(0, 3, (4,) * 10)
    targets = torch.tensor([17, 2, 17, 3, 4, 5, 6, 7, 8, 9, 10, 17])
    labels = {"nsp": torch.tensor([1, 0, 0])}
    batch = Batch(
        input_ids=random_batch.input_ids,
        token_type_ids=random_batch.token_type_ids,
        lengths=random_batch.lengths,
        attention="bidirectional",
        positions=random_batch.positions,
        targets=targets,
        labels=labels,
    )
    scores = evaluate(module, [batch])
    assert scores.accuracies == {"mlm": 0.25, "nsp": pytest.approx(1 / 3)}
    # A wrong pair costs 200, a correct one nothing; a wrong token about 100, up to the small random logits.
    assert scores.losses["nsp"] == pytest.approx(400 / 3, abs=1.0)
    assert scores.losses["mlm"] == pytest.approx(75.0, abs=1.0)


def test_evaluation_changes_no_parameter_has_no_dropout_and_restores_the_mode(module: MlmModule):
    before = {name: values.clone() for name, values in module.state_dict().items()}
    for training in (True, False):
        module.train(training)
        first, second = (evaluate(module, [make_batch(0, 10, NUM_MASKED)]) for _ in range(2))
        assert first == second
        assert module.training is training
        assert module.encoder.layers[0].training is training
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_mode_is_restored_after_an_error(module: MlmModule):
    def broken() -> Iterator[Batch]:
        yield make_batch(0, 2, NUM_MASKED)
        raise RuntimeError("no more batches")

    module.train()
    with pytest.raises(RuntimeError, match="no more batches"):
        evaluate(module, broken())
    assert module.training


def test_without_batches_there_are_no_scores(module: MlmModule):
    scores = evaluate(module, [])
    assert (scores.losses, scores.accuracies) == ({}, {})
