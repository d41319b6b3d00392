"""The loss of pretraining against transformers' BertForPreTraining: value, every gradient, and what is asked."""

from collections.abc import Sequence

import pytest
import torch
import transformers

from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_to_dict, tensor_names
from bertworks.encoders.layers import DropoutSeeds
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives import cross_entropy as scoring
from bertworks.objectives.mlm import MlmObjective
from bertworks.objectives.registry import OBJECTIVES
from bertworks.sampling.batch import Batch
from bertworks.sampling.samplers import OBJECTIVE_INPUTS

SIZES = BertConfig(60, 32, 2, 4, 64, 64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
NAMES = combine_name_tables({"encoder": tensor_names(SIZES), "mlm_head": HEADS["mlm"], "pair_head": HEADS["nsp"]})
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
CLOSE = 1e-5
BATCHES = {"full": (13, 13), "nearly full": (20, 19, 20), "ragged": (32, 7, 7, 15)}

Theirs = transformers.BertForPreTraining


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pair() -> tuple[MlmObjective, Theirs]:
    """Ours and theirs with the same weights, biases and norms drawn as well."""
    theirs = Theirs(transformers.BertConfig(**config_to_dict(SIZES, ["BertForPreTraining"]))).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.1, generator=generator)
    ours = MlmObjective(Bert(SIZES)).eval()
    report = load_into(ours, {k: v for k, v in theirs.state_dict().items() if k not in TIED}, NAMES)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    return ours, theirs


def batch_with(lengths: Sequence[int]) -> Batch:
    """Rows of these lengths, with every fifth real place to predict."""
    generator = torch.Generator().manual_seed(1)
    width = max(lengths)
    ids = torch.randint(1, SIZES.vocab_size, (len(lengths), width), generator=generator)
    segments = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        segments[row, length // 2 : length] = 1
        ids[row, length:] = 0
    places = torch.tensor([row * width + at for row, length in enumerate(lengths) for at in range(1, length, 5)])
    targets = torch.randint(1, SIZES.vocab_size, places.shape, generator=generator)
    labels = {"nsp": torch.arange(len(lengths)) % 2}
    return Batch(ids, segments, torch.tensor(lengths), "bidirectional", places, targets, labels)


def means(module: MlmObjective, batch: Batch) -> dict[str, float]:
    return {name: 1 / count for name, count in module.counts(batch).items()}


def loss_of_theirs(theirs: Theirs, batch: Batch) -> torch.Tensor:
    """Their loss: -100 marks the places that are not scored."""
    labels = torch.full_like(batch.input_ids, -100).flatten()
    labels[batch.positions] = batch.targets
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    asked = {"labels": labels.view_as(batch.input_ids), "next_sentence_label": batch.labels["nsp"]}
    return theirs(batch.input_ids, mask, batch.token_type_ids, **asked).loss


@pytest.mark.parametrize("block", [8 * 2**20, 3 * SIZES.vocab_size], ids=["one block", "several blocks"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_loss_and_all_gradients_equal_those_of_transformers(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[MlmObjective, Theirs], lengths: tuple[int, ...], block: int
):
    monkeypatch.setattr(scoring, "_BLOCK", block)
    ours, theirs = pair
    batch = batch_with(lengths)
    ours.zero_grad()
    theirs.zero_grad()
    expected = loss_of_theirs(theirs, batch)
    expected.backward()
    found = ours(batch, means(ours, batch)).value
    found.backward()
    assert float((found - expected).detach().abs()) < CLOSE
    slopes = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert set(slopes) == set(NAMES)
    obtained = to_hf_names(slopes, NAMES)
    for name, parameter in theirs.named_parameters():
        if name not in TIED:
            assert parameter.grad is not None, name
            assert float((obtained[name] - parameter.grad).abs().max()) < CLOSE, name


def test_parts_are_sums_with_their_counts_and_the_value_is_their_scaled_sum(pair: tuple[MlmObjective, Theirs]):
    ours, _ = pair
    batch = batch_with((16, 6))  # places 1, 6, 11 of the first row and 1 of the second
    loss = ours(batch, {"mlm": 0.5, "nsp": 2.0})
    assert ours.counts(batch) == {"mlm": 4, "nsp": 2}
    assert {name: part.count for name, part in loss.parts.items()} == {"mlm": 4, "nsp": 2}
    added = 0.5 * float(loss.parts["mlm"].total) + 2.0 * float(loss.parts["nsp"].total)
    assert abs(float(loss.value.detach()) - added) < CLOSE
    assert not any(part.total.requires_grad for part in loss.parts.values())


def test_evaluation_gives_the_same_loss_and_counts_right_answers(pair: tuple[MlmObjective, Theirs]):
    ours, _ = pair
    batch = batch_with((20, 9, 9))
    scales = means(ours, batch)
    trained = ours(batch, scales)
    with torch.no_grad():
        evaluated = ours(batch, scales)
        encoded = ours.encoder(batch)
        assert batch.positions is not None
        best = ours.mlm_head(encoded.gather(batch.positions), ours.encoder.token_embeddings.weight).argmax(-1)
        asked = Batch(
            batch.input_ids, batch.token_type_ids, batch.lengths, "bidirectional", batch.positions, best, batch.labels
        )  # what it says itself
        sure = ours(asked, scales)
    assert abs(float(trained.value.detach()) - float(evaluated.value)) < CLOSE
    assert trained.parts["mlm"].correct is None
    assert sure.parts["mlm"].correct == len(best)
    answers = ours.pair_head(encoded.pooled).argmax(-1) == batch.labels["nsp"]
    assert evaluated.parts["nsp"].correct == int(answers.sum())


def test_only_hidden_places_are_scored(pair: tuple[MlmObjective, Theirs]):
    """The slope of the head's bias is the shares of the pieces, less 1 at each target: below zero at targets alone."""
    ours, _ = pair
    batch = batch_with((16, 16))
    one = Batch(
        batch.input_ids,
        batch.token_type_ids,
        batch.lengths,
        "bidirectional",
        torch.tensor([18]),
        torch.tensor([7]),
        batch.labels,
    )
    ours.zero_grad()
    ours(one, {"mlm": 1.0, "nsp": 0.0}).value.backward()
    slope = ours.mlm_head.bias.grad
    assert slope is not None
    assert slope.lt(0).nonzero().flatten().tolist() == [7]  # one place, one target
    assert abs(float(slope.sum())) < CLOSE
    last = ours.encoder(one).last_hidden_state.detach().requires_grad_()
    vectors = ours.mlm_head.transform(last[torch.tensor([18])])
    scoring.cross_entropy_sum(
        vectors, ours.encoder.token_embeddings.weight, ours.mlm_head.bias, torch.tensor([7]), 1.0
    ).backward()
    assert last.grad is not None
    assert last.grad.abs().sum(-1).nonzero().flatten().tolist() == [18]


def test_dropout_follows_the_seeds_in_training_and_rests_in_evaluation():
    sizes = BertConfig(60, 16, 1, 2, 32, 32)
    module = MlmObjective(Bert(sizes, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0))
    batch = batch_with((12, 12))
    scales = means(module, batch)
    one, two = (DropoutSeeds(torch.tensor(number, dtype=torch.int32)) for number in (1, 2))
    first, again, other = (float(module(batch, scales, seeds).value.detach()) for seeds in (one, one, two))
    assert first == again != other
    module.eval()
    assert float(module(batch, scales, one).value.detach()) == float(module(batch, scales, two).value.detach())


def test_an_objective_without_a_pair_asks_only_for_pieces_and_trains_all_that_is_asked():
    module = MlmObjective(Bert(SIZES), has_pair_head=False)
    full = batch_with((12, 12))
    batch = Batch(full.input_ids, full.token_type_ids, full.lengths, "bidirectional", full.positions, full.targets)
    assert module.counts(batch) == {"mlm": 6}  # places 1, 6 and 11 of both rows
    loss = module(batch, means(module, batch))
    assert set(loss.parts) == {"mlm"}
    loss.value.backward()
    idle = [name for name, one in module.named_parameters() if one.requires_grad and one.grad is None]
    assert idle == []  # an idle parameter would stop torch's exchange between processes, and have no state to resume
    assert not module.encoder.pooler.weight.requires_grad


def test_the_same_generator_draws_the_same_model():
    one, same, other = (
        MlmObjective(Bert(SIZES, generator), generator)
        for generator in (torch.Generator().manual_seed(seed) for seed in (3, 3, 4))
    )
    assert all(torch.equal(one.state_dict()[name], values) for name, values in same.state_dict().items())
    assert not torch.equal(one.mlm_head.dense.weight, other.mlm_head.dense.weight)


def test_every_objective_that_reads_examples_is_known_here():
    assert set(OBJECTIVES) == set(OBJECTIVE_INPUTS)
