"""The pretraining heads against transformers on the same weights: logits, loss and the gradient of every tensor."""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from torch import nn

from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_from_dict, config_to_dict
from bertworks.encoders.encoder import init_weights
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives.heads import MlmHead, PairHead
from bertworks.sampling.batch import Batch

TOLERANCE = 1e-5
DOUBLE_TOLERANCE = 1e-11
CONFIG = BertConfig(
    vocab_size=90,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
BATCHES = {"full": (23, 23), "nearly full": (40, 38, 40), "ragged": (64, 7, 7, 30), "longest": (512, 3)}
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


pytestmark = pytest.mark.usefixtures("one_thread")


class Ours(nn.Module):
    """Our encoder with both heads, and the loss of BERT's pretraining written out."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.encoder = Bert(config)
        self.mlm_head = MlmHead(config)
        self.pair_head = PairHead(config.hidden_size)
        self.names = combine_name_tables(
            {"encoder": tensor_names(config), "mlm_head": HEADS["mlm"], "pair_head": HEADS["nsp"]}
        )

    def logits(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        assert batch.positions is not None
        encoded = self.encoder(batch)
        return self.mlm_head(encoded.gather(batch.positions), self.encoder.token_embeddings.weight), self.pair_head(
            encoded.pooled
        )

    def loss(self, batch: Batch) -> torch.Tensor:
        assert batch.targets is not None
        token_logits, pair_logits = self.logits(batch)
        return F.cross_entropy(token_logits, batch.targets) + F.cross_entropy(pair_logits, batch.labels["nsp"])


Pair = tuple[Ours, transformers.BertForPreTraining]


def load_ours(theirs: transformers.BertForPreTraining) -> Ours:
    with torch.device("meta"):
        ours = Ours(config_from_dict(BertConfig, theirs.config.to_dict()))
    tensors = {name: value for name, value in theirs.state_dict().items() if name not in TIED}
    report = load_into(ours, tensors, ours.names)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    return ours.eval()


@pytest.fixture(scope="module")
def tiny_pair() -> Pair:
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**config_to_dict(CONFIG, ["BertForPreTraining"])))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.1, generator=generator)
    return load_ours(theirs), theirs.eval()


@pytest.fixture(scope="module")
def real_pair(minilm: Path) -> Pair:
    """A released encoder; it has no pretraining heads, so these are random."""
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining.from_pretrained(minilm)
    return load_ours(theirs), theirs.eval()


def make_batch(lengths: Sequence[int], vocab_size: int) -> Batch:
    """Pairs of random segments of these lengths, with every fifth token to predict."""
    generator = torch.Generator().manual_seed(1)
    max_length = max(lengths)
    input_ids = torch.randint(1, vocab_size, (len(lengths), max_length), generator=generator)
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
    targets = torch.randint(1, vocab_size, positions.shape, generator=generator)
    labels = {"nsp": torch.arange(len(lengths)) % 2}
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        lengths=torch.tensor(lengths),
        positions=positions,
        targets=targets,
        labels=labels,
    )


def run_peer(theirs: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits at the positions, logits of the pairs, and the loss of transformers."""
    assert batch.positions is not None
    assert batch.targets is not None
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    labels = torch.full_like(batch.input_ids, -100).flatten()
    labels[batch.positions] = batch.targets
    output = theirs(
        batch.input_ids,
        mask,
        batch.token_type_ids,
        labels=labels.view_as(batch.input_ids),
        next_sentence_label=batch.labels["nsp"],
    )
    return output.prediction_logits.flatten(0, 1)[batch.positions], output.seq_relationship_logits, output.loss


def gradients(ours: Ours, batch: Batch) -> dict[str, torch.Tensor]:
    """The gradient of each of our tensors, under transformers' names."""
    ours.zero_grad()
    ours.loss(batch).backward()
    grads = {}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        grads[name] = parameter.grad
    return to_hf_names(grads, ours.names)


def check_parity(pair: Pair, lengths: Sequence[int], tolerance: float, rounding: float = 0.0) -> None:
    """Compare everything; token logits may also differ by twice transformers' own rounding error."""
    ours, theirs = pair
    batch = make_batch(lengths, ours.encoder.config.vocab_size)
    theirs.zero_grad()
    token_logits, pair_logits, loss = run_peer(theirs, batch)
    loss.backward()
    with torch.no_grad():
        logits = ours.logits(batch)
        assert float((logits[0] - token_logits).abs().max()) < max(tolerance, 2 * rounding)
        assert float((logits[1] - pair_logits).abs().max()) < tolerance
        assert abs(float(ours.loss(batch)) - float(loss)) < tolerance
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters() if name not in TIED}
    obtained = gradients(ours, batch)
    assert set(obtained) == set(expected)
    for name, gradient in expected.items():
        assert float((obtained[name] - gradient).abs().max()) < tolerance, name


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(tiny_pair: Pair, lengths: tuple[int, ...]):
    check_parity(tiny_pair, lengths, TOLERANCE)


@pytest.mark.parametrize("lengths", [(23, 22), (33, 7, 7)], ids=["nearly full", "ragged"])
def test_a_released_checkpoint_agrees_in_single_and_double_precision(real_pair: Pair, lengths: tuple[int, ...]):
    double_pair = copy.deepcopy(real_pair[0]).double(), copy.deepcopy(real_pair[1]).double()
    check_parity(double_pair, lengths, DOUBLE_TOLERANCE)
    batch = make_batch(lengths, real_pair[0].encoder.config.vocab_size)
    with torch.no_grad():
        single, double = (run_peer(theirs, batch)[0] for theirs in (real_pair[1], double_pair[1]))
    check_parity(real_pair, lengths, TOLERANCE, float((single - double).abs().max()))


def test_an_mlm_head_by_hand():
    """Hidden size 2, three tokens. The transform is the identity, relu and a norm: (3, -1) -> (3, 0) -> (1, -1)."""
    head = MlmHead(BertConfig(vocab_size=3, hidden_size=2, num_attention_heads=1, hidden_act="relu"))
    with torch.no_grad():
        head.dense.weight.copy_(torch.eye(2))
        head.dense.bias.zero_()
        head.bias.copy_(torch.tensor([0.0, 10.0, 0.5]))
        vectors = torch.tensor([[3.0, -1.0]])
        table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])
        assert torch.allclose(head.transform(vectors), torch.tensor([[1.0, -1.0]]))
        assert torch.allclose(head(vectors, table), torch.tensor([[1.0, 9.0, -0.5]]))


def test_the_unigram_bias_predicts_tokens_with_their_frequency():
    """Counts 5, 1, 0 and one more of each: 6, 2 and 1 of 9. A fourth row of the table is padding of the vocabulary."""
    head = MlmHead(BertConfig(vocab_size=4, hidden_size=2, num_attention_heads=1))
    head.init_unigram_bias(np.array([5, 1, 0]))
    bias = head.bias.detach()
    assert torch.allclose(bias[:3].softmax(0), torch.tensor([6.0, 2.0, 1.0]) / 9)
    assert float(bias[:3].sum()) == pytest.approx(0, abs=1e-6)
    assert float(bias[3]) == 0


def test_a_pair_head_by_hand():
    head = PairHead(2)
    with torch.no_grad():
        head.score.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        head.score.bias.copy_(torch.tensor([0.5, 0.0]))
        assert head(torch.tensor([[1.0, 1.0], [0.0, 2.0]])).tolist() == [[3.5, 2.0], [4.5, -2.0]]


def test_heads_are_initialized_like_the_encoder():
    head = MlmHead(BertConfig(vocab_size=100, hidden_size=64, num_attention_heads=1))
    init_weights(head, 0.02, torch.Generator().manual_seed(0))
    assert 0 < float(head.dense.weight.detach().abs().max()) <= 0.04
    assert not head.dense.bias.any()
    assert not head.bias.any()


def test_tensor_names_cover_the_heads():
    assert set(HEADS["mlm"]) == set(
        MlmHead(BertConfig(vocab_size=5, hidden_size=4, num_attention_heads=1)).state_dict()
    )
    assert set(HEADS["nsp"]) == set(PairHead(4).state_dict())


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="there is no activation 'swiglu'; choose one of: gelu, gelu_python"):
        MlmHead(BertConfig(vocab_size=5, hidden_size=4, num_attention_heads=1, hidden_act="swiglu"))
