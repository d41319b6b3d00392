"""Encoders over a runtime: sequences come back in order however they are grouped, with the last layer only."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from bertworks.embeddings.strategies import STRATEGIES
from bertworks.encoders.bert import BertConfig
from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder, LastLayerOnly
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError, InputError
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

CONFIG = BertConfig(
    vocab_size=10_012,
    hidden_size=4,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=400,
)
Ints = npt.NDArray[np.int64]


class EchoRuntime:
    """A runtime that returns [input id, token type, position, mask] for each token, and records its calls."""

    name = "a runtime"
    outputs = ("last_hidden_state", "pooler_output", "logits")
    num_parallel_batches = 1
    digest = b"0123"

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.output_names: list[tuple[str, ...]] = []

    def run(self, inputs: tuple[Ints, Ints, Ints], output_names: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        input_ids, mask, token_type_ids = inputs
        assert all(values.flags.c_contiguous and values.dtype == np.int64 for values in inputs)
        self.shapes.append(input_ids.shape)
        self.output_names.append(tuple(output_names))
        positions = np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)
        values = np.stack([input_ids, token_type_ids, positions, mask], -1).astype(np.float32)
        return [values[:, 0] if name == "pooler_output" else values for name in output_names]


@pytest.fixture
def runtime() -> EchoRuntime:
    return EchoRuntime()


def encode_lengths(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[Encoding]:
    return [tokenizer.encode(" ".join(f"w{number}" for number in range(length - 2))) for length in lengths]


def test_sequences_of_very_different_lengths_run_separately(tokenizer: Tokenizer, runtime: EchoRuntime):
    sequences = encode_lengths(tokenizer, [300, 20, 20, 18])
    encoded = GraphEncoder(CONFIG, runtime).encode_sequences(sequences, tokenizer.specials.pad)
    assert runtime.shapes == [(1, 300), (3, 20)]
    assert encoded.last_hidden_state[:, 0].tolist() == [
        token_id for sequence in sequences for token_id in sequence.input_ids
    ]
    assert encoded.last_hidden_state[:, 3].tolist() == [1.0] * 358
    assert encoded.starts == [0, 300, 320, 340]
    assert encoded.pooled is not None
    assert encoded.pooled[:, 0].tolist() == [sequences[0].input_ids[0]] * 4


def test_few_tokens_run_together_in_spite_of_padding(tokenizer: Tokenizer, runtime: EchoRuntime):
    sequences = encode_lengths(tokenizer, [40, 10, 3])
    encoded = GraphEncoder(CONFIG, runtime).encode_sequences(sequences, tokenizer.specials.pad)
    assert runtime.shapes == [(3, 40)]
    assert encoded.last_hidden_state[:, 2].tolist() == [*range(40), *range(10), *range(3)]


def test_an_engine_runs_it_like_any_encoder(tokenizer: Tokenizer, runtime: EchoRuntime):
    sequences = encode_lengths(tokenizer, [5, 17, 3, 9])
    engine = TorchEngine(GraphEncoder(CONFIG, runtime), tokenizer)
    lengths = engine.predict(sequences, lambda batch: [len(sequence.input_ids) for sequence in batch.sequences])
    assert list(lengths) == [5, 17, 3, 9]


def test_layers_other_than_the_last_are_refused(runtime: EchoRuntime):
    layers = LastLayerOnly.from_last(np.ones((2, 4), dtype=np.float32), 3, runtime.name)
    assert layers[-1] is layers[3]
    assert STRATEGIES["last"](layers).tolist() == [[1.0] * 4] * 2
    for name in ("embeddings", "second-to-last", "sum-all"):
        with pytest.raises(FolderError, match="a model in a runtime has only its last layer and predictions"):
            STRATEGIES[name](layers)
    with pytest.raises(FolderError, match="use the folder that it was exported from"):
        list(layers)


@pytest.mark.parametrize("part", ["layers", "token_embeddings", "norm", "pooler", "embed"])
def test_modules_inside_the_graph_are_refused(runtime: EchoRuntime, part: str):
    with pytest.raises(FolderError, match="need the original weights"):
        getattr(GraphEncoder(CONFIG, runtime), part)


def test_an_unknown_attribute_is_an_attribute_error(runtime: EchoRuntime):
    with pytest.raises(AttributeError, match="nonsense"):
        GraphEncoder(CONFIG, runtime).nonsense  # noqa: B018


def test_the_fingerprint_is_that_of_earlier_versions(runtime: EchoRuntime):
    """They hashed a state dict with the digest and an empty table of token embeddings: outputs of `embed` resume."""
    state = b"digest (4,)\n0123token_embeddings.weight (0, 4)\n"
    assert GraphEncoder(CONFIG, runtime).fingerprint == hashlib.sha256(state).hexdigest()[:16]


def test_mlm_logits_are_computed_only_for_sequences_with_masks(tokenizer: Tokenizer, runtime: EchoRuntime):
    """Sequences of 300 positions run one at a time, and the middle one, without masks, not at all."""
    encoder = GraphEncoder(CONFIG, runtime, HEAD_OUTPUTS["mlm"])
    positions = [np.array([7, 299]), np.array([], dtype=np.int64), np.array([1])]
    logits = encoder.mlm_logits(encode_lengths(tokenizer, [300, 300, 300]), positions, tokenizer.specials.pad)
    assert logits[:, 2].tolist() == [7, 299, 1]
    assert runtime.shapes == [(1, 300), (1, 300)]
    assert set(runtime.output_names) == {("logits",)}


def test_too_long_sequences_are_refused(tokenizer: Tokenizer, runtime: EchoRuntime):
    with pytest.raises(InputError, match="longer than the 400 positions"):
        GraphEncoder(CONFIG, runtime).encode_sequences(encode_lengths(tokenizer, [401]), tokenizer.specials.pad)
