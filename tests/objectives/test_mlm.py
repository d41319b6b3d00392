"""The pretraining loss against transformers' BertForPreTraining: value, every gradient, and what is scored."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import transformers

from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.encoders.layers import DropoutSeeds
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives import cross_entropy
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.batch import Batch

CONFIG = BertConfig(
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
NAMES = combine_name_tables({"encoder": tensor_names(CONFIG), "mlm_head": HEADS["mlm"], "pair_head": HEADS["nsp"]})
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
TOLERANCE = 1e-5
BATCHES = {"full": (13, 13), "nearly full": (20, 19, 20), "ragged": (32, 7, 7, 15)}

Theirs = transformers.BertForPreTraining


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pair() -> tuple[MlmModule, Theirs]:
    """Our module and transformers', with the same random weights, biases and norms included."""
    theirs = Theirs(transformers.BertConfig(**config_to_dict(CONFIG, ["BertForPreTraining"]))).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.1, generator=generator)
    ours = MlmModule(Bert(CONFIG)).eval()
    report = load_into(ours, {k: v for k, v in theirs.state_dict().items() if k not in TIED}, NAMES)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    return ours, theirs


def make_batch(lengths: Sequence[int]) -> Batch:
    """Sequences of these lengths, with every fifth token to predict."""
    generator = torch.Generator().manual_seed(1)
    max_length = max(lengths)
    input_ids = torch.randint(1, CONFIG.vocab_size, (len(lengths), max_length), generator=generator)
    token_type_ids = torch.zeros_like(input_ids)
    for sequence, length in enumerate(lengths):
        token_type_ids[sequence, length // 2 : length] = 1
        input_ids[sequence, length:] = 0
    positions = torch.tensor(
        [
            sequence * max_length + position
            for sequence, length in enumerate(lengths)
            for position in range(1, length, 5)
        ]
    )
    targets = torch.randint(1, CONFIG.vocab_size, positions.shape, generator=generator)
    labels = {"nsp": torch.arange(len(lengths)) % 2}
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        lengths=torch.tensor(lengths),
        positions=positions,
        targets=targets,
        labels=labels,
    )


def mean_scales(module: MlmModule, batch: Batch) -> dict[str, float]:
    return {name: 1 / count for name, count in module.counts(batch).items()}


def peer_loss(theirs: Theirs, batch: Batch) -> torch.Tensor:
    """The loss of transformers, with label -100 at positions that are not scored."""
    labels = torch.full_like(batch.input_ids, -100).flatten()
    labels[batch.positions] = batch.targets
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    label_inputs = {"labels": labels.view_as(batch.input_ids), "next_sentence_label": batch.labels["nsp"]}
    return theirs(batch.input_ids, mask, batch.token_type_ids, **label_inputs).loss


@pytest.mark.parametrize("block", [8 * 2**20, 3 * CONFIG.vocab_size], ids=["one block", "several blocks"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_loss_and_all_gradients_equal_those_of_transformers(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[MlmModule, Theirs], lengths: tuple[int, ...], block: int
):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    ours, theirs = pair
    batch = make_batch(lengths)
    ours.zero_grad()
    theirs.zero_grad()
    expected = peer_loss(theirs, batch)
    expected.backward()
    loss = ours(batch, mean_scales(ours, batch)).value
    loss.backward()
    assert float((loss - expected).detach().abs()) < TOLERANCE
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert set(gradients) == set(NAMES)
    written = to_hf_names(gradients, NAMES)
    for name, parameter in theirs.named_parameters():
        if name not in TIED:
            assert parameter.grad is not None, name
            assert float((written[name] - parameter.grad).abs().max()) < TOLERANCE, name


def test_parts_are_sums_with_their_counts_and_the_value_is_their_scaled_sum(pair: tuple[MlmModule, Theirs]):
    ours, _ = pair
    batch = make_batch((16, 6))  # positions 1, 6, 11 of the first sequence and 1 of the second
    loss = ours(batch, {"mlm": 0.5, "nsp": 2.0})
    assert ours.counts(batch) == {"mlm": 4, "nsp": 2}
    assert {name: part.count for name, part in loss.parts.items()} == {"mlm": 4, "nsp": 2}
    expected = 0.5 * float(loss.parts["mlm"].total) + 2.0 * float(loss.parts["nsp"].total)
    assert abs(float(loss.value.detach()) - expected) < TOLERANCE
    assert not any(part.total.requires_grad for part in loss.parts.values())


def test_evaluation_gives_the_same_loss_and_counts_correct_predictions(pair: tuple[MlmModule, Theirs]):
    ours, _ = pair
    batch = make_batch((20, 9, 9))
    scales = mean_scales(ours, batch)
    trained = ours(batch, scales)
    with torch.no_grad():
        evaluated = ours(batch, scales)
        encoded = ours.encoder(batch)
        assert batch.positions is not None
        best = ours.mlm_head(encoded.gather(batch.positions), ours.encoder.token_embeddings.weight).argmax(-1)
        all_correct = ours(replace(batch, targets=best), scales)
    assert abs(float(trained.value.detach()) - float(evaluated.value)) < TOLERANCE
    assert trained.parts["mlm"].correct is None
    assert all_correct.parts["mlm"].correct == len(best)
    is_correct = ours.pair_head(encoded.pooled).argmax(-1) == batch.labels["nsp"]
    assert evaluated.parts["nsp"].correct == int(is_correct.sum())


def test_only_masked_positions_are_scored(pair: tuple[MlmModule, Theirs]):
    """The gradient of the output bias is the probabilities minus 1 at each target: negative at targets alone."""
    ours, _ = pair
    batch = make_batch((16, 16))
    one_target = replace(batch, positions=torch.tensor([18]), targets=torch.tensor([7]))
    ours.zero_grad()
    ours(one_target, {"mlm": 1.0, "nsp": 0.0}).value.backward()
    gradient = ours.mlm_head.bias.grad
    assert gradient is not None
    assert gradient.lt(0).nonzero().flatten().tolist() == [7]  # one position, one target
    assert abs(float(gradient.sum())) < TOLERANCE
    last_hidden_state = ours.encoder(one_target).last_hidden_state.detach().requires_grad_()
    vectors = ours.mlm_head.transform(last_hidden_state[torch.tensor([18])])
    cross_entropy.cross_entropy_sum(
        vectors, ours.encoder.token_embeddings.weight, ours.mlm_head.bias, torch.tensor([7]), 1.0
    ).backward()
    assert last_hidden_state.grad is not None
    assert last_hidden_state.grad.abs().sum(-1).nonzero().flatten().tolist() == [18]


def test_dropout_follows_the_seeds_in_training_and_is_off_in_evaluation():
    config = replace(CONFIG, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    module = MlmModule(Bert(config, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0))
    batch = make_batch((12, 12))
    scales = mean_scales(module, batch)
    one, two = (DropoutSeeds(torch.tensor(number, dtype=torch.int32)) for number in (1, 2))
    first, again, other = (float(module(batch, scales, seeds).value.detach()) for seeds in (one, one, two))
    assert first == again != other
    module.eval()
    assert float(module(batch, scales, one).value.detach()) == float(module(batch, scales, two).value.detach())


def test_without_pairs_only_masked_tokens_are_scored_and_the_pooler_is_unused():
    module = MlmModule(Bert(CONFIG), has_pair_head=False)
    batch = replace(make_batch((12, 12)), labels={})
    assert module.counts(batch) == {"mlm": 6}  # positions 1, 6 and 11 of both sequences
    loss = module(batch, mean_scales(module, batch))
    assert set(loss.parts) == {"mlm"}
    loss.value.backward()
    unused = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    assert unused == ["encoder.pooler.weight", "encoder.pooler.bias"]
    assert module.unused_parameters == ("encoder.pooler.",)


def test_the_same_seed_gives_the_same_weights():
    one, same, other = (
        MlmModule(Bert(CONFIG, generator), generator)
        for generator in (torch.Generator().manual_seed(seed) for seed in (3, 3, 4))
    )
    assert all(torch.equal(one.state_dict()[name], values) for name, values in same.state_dict().items())
    assert not torch.equal(one.mlm_head.dense.weight, other.mlm_head.dense.weight)
