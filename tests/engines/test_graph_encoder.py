"""Encoders over a runtime: sequences come back in order however they are grouped, with the last layer only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bertworks.embeddings.strategies import STRATEGIES
from bertworks.encoders.bert import BertConfig
from bertworks.engines.graph_encoder import HEAD_OUTPUTS, GraphEncoder, LastLayerOnly
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.sampling.batch import Batch, collate_sequences
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
    encoded = GraphEncoder(CONFIG, runtime)(collate_sequences(sequences, tokenizer.specials.pad))
    assert runtime.shapes == [(1, 300), (3, 20)]
    assert encoded.last_hidden_state[:, 0].tolist() == [
        token_id for sequence in sequences for token_id in sequence.input_ids
    ]
    assert encoded.last_hidden_state[:, 3].tolist() == [1.0] * 358
    assert encoded.layout.starts.tolist() == [0, 300, 320, 340]
    assert encoded.pooled is not None
    assert encoded.pooled[:, 0].tolist() == [sequences[0].input_ids[0]] * 4


def test_few_tokens_run_together_in_spite_of_padding(tokenizer: Tokenizer, runtime: EchoRuntime):
    sequences = encode_lengths(tokenizer, [40, 10, 3])
    encoded = GraphEncoder(CONFIG, runtime)(collate_sequences(sequences, tokenizer.specials.pad))
    assert runtime.shapes == [(3, 40)]
    assert encoded.last_hidden_state[:, 2].tolist() == [*range(40), *range(10), *range(3)]


def test_nearly_full_batches_stay_padded(tokenizer: Tokenizer, runtime: EchoRuntime):
    encoded = GraphEncoder(CONFIG, runtime)(
        collate_sequences(encode_lengths(tokenizer, [10, 9]), tokenizer.specials.pad)
    )
    assert encoded.last_hidden_state.shape == (20, 4)
    assert encoded.to_padded()[1, 9].tolist() == [0, 0, 0, 0]


def test_an_engine_runs_it_like_any_encoder(tokenizer: Tokenizer, runtime: EchoRuntime):
    sequences = encode_lengths(tokenizer, [5, 17, 3, 9])
    engine = TorchEngine(GraphEncoder(CONFIG, runtime), tokenizer)
    lengths = engine.predict(sequences, lambda batch: [len(sequence.input_ids) for sequence in batch.sequences])
    assert list(lengths) == [5, 17, 3, 9]


def test_layers_other_than_the_last_are_refused(runtime: EchoRuntime):
    layers = LastLayerOnly.from_last(torch.ones(2, 4), 3, runtime.name)
    assert layers[-1] is layers[3]
    assert STRATEGIES["last"](layers).tolist() == torch.ones(2, 4).tolist()
    for name in ("embeddings", "second-to-last", "sum-all"):
        with pytest.raises(FolderError, match="a model in a runtime has only its last layer and predictions"):
            STRATEGIES[name](layers)
    with pytest.raises(FolderError, match="use the folder that it was exported from"):
        list(layers)


@pytest.mark.parametrize("part", ["layers", "position_embeddings", "token_type_embeddings", "norm", "pooler"])
def test_modules_inside_the_graph_are_refused(runtime: EchoRuntime, part: str):
    with pytest.raises(FolderError, match="need the original weights"):
        getattr(GraphEncoder(CONFIG, runtime), part)


def test_token_embeddings_have_a_device_and_no_vectors(runtime: EchoRuntime):
    encoder = GraphEncoder(CONFIG, runtime)
    assert encoder.token_embeddings.weight.device == torch.device("cpu")
    with pytest.raises(FolderError, match="need the original weights"):
        encoder.token_embeddings(torch.tensor([1]))


def test_an_unknown_attribute_is_an_attribute_error(runtime: EchoRuntime):
    with pytest.raises(AttributeError, match="nonsense"):
        GraphEncoder(CONFIG, runtime).nonsense  # noqa: B018


def test_the_digest_is_in_the_state_dict(runtime: EchoRuntime):
    assert GraphEncoder(CONFIG, runtime).state_dict()["digest"].tolist() == list(b"0123")


def test_mlm_logits_are_computed_only_for_sequences_with_masks(tokenizer: Tokenizer, runtime: EchoRuntime):
    """Sequences of 300 positions run one at a time, and the middle one, without masks, not at all."""
    encoder = GraphEncoder(CONFIG, runtime, HEAD_OUTPUTS["mlm"])
    encoded = encoder(collate_sequences(encode_lengths(tokenizer, [300, 300, 300]), tokenizer.specials.pad))
    assert runtime.shapes == []
    logits = encoded.gather(torch.tensor([7, 299, 601]))
    assert logits[:, 2].tolist() == [7, 299, 1]
    assert runtime.shapes == [(1, 300), (1, 300)]
    assert set(runtime.output_names) == {("logits",)}


def test_too_long_sequences_and_causal_attention_are_refused(tokenizer: Tokenizer, runtime: EchoRuntime):
    encoder = GraphEncoder(CONFIG, runtime)
    ones = torch.ones(1, 401, dtype=torch.long)
    with pytest.raises(InputError, match="longer than the 400 positions"):
        encoder(Batch(input_ids=ones, token_type_ids=ones, lengths=torch.tensor([401])))
    short = ones[:, :4]
    with pytest.raises(SettingsError, match="has bidirectional attention only"):
        encoder(Batch(input_ids=short, token_type_ids=short, lengths=torch.tensor([4]), attention="causal"))
