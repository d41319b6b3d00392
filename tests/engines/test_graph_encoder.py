"""An encoder over a runtime: rows come back in order whatever they are run with, and only the last layer is there."""

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

SIZES = BertConfig(
    vocab_size=10_012,
    hidden_size=4,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=400,
)
Ints = npt.NDArray[np.int64]


class Telling:
    """A runtime whose vectors tell the piece: [id, segment, place, 1], and which remembers what it was asked."""

    name = "a runtime"
    outputs = ("last_hidden_state", "pooler_output", "logits")
    num_at_once = 1
    digest = b"0123"

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.wanted: list[tuple[str, ...]] = []

    def run(self, rows: tuple[Ints, Ints, Ints], wanted: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        ids, mask, segments = rows
        assert all(one.flags.c_contiguous and one.dtype == np.int64 for one in rows)
        self.shapes.append(ids.shape)
        self.wanted.append(tuple(wanted))
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        told = np.stack([ids, segments, places, mask], -1).astype(np.float32)
        return [told[:, 0] if name == "pooler_output" else told for name in wanted]


@pytest.fixture
def runtime() -> Telling:
    return Telling()


def rows_of(tokenizer: Tokenizer, lengths: Sequence[int]) -> list[Encoding]:
    return [tokenizer.encode(" ".join(f"w{number}" for number in range(length - 2))) for length in lengths]


def test_rows_of_very_different_lengths_are_run_apart_without_padding(tokenizer: Tokenizer, runtime: Telling):
    rows = rows_of(tokenizer, [300, 20, 20, 18])
    found = GraphEncoder(SIZES, runtime)(collate_sequences(rows, tokenizer.specials.pad))
    assert runtime.shapes == [(1, 300), (3, 20)]
    assert found.last_hidden_state[:, 0].tolist() == [number for row in rows for number in row.input_ids]
    assert found.last_hidden_state[:, 3].tolist() == [1.0] * 358
    assert found.layout.starts.tolist() == [0, 300, 320, 340]
    assert found.pooled is not None
    assert found.pooled[:, 0].tolist() == [rows[0].input_ids[0]] * 4


def test_few_pieces_are_run_together_though_some_is_padding(tokenizer: Tokenizer, runtime: Telling):
    rows = rows_of(tokenizer, [40, 10, 3])
    found = GraphEncoder(SIZES, runtime)(collate_sequences(rows, tokenizer.specials.pad))
    assert runtime.shapes == [(3, 40)]
    assert found.last_hidden_state[:, 2].tolist() == [*range(40), *range(10), *range(3)]


def test_nearly_full_batches_keep_their_shape(tokenizer: Tokenizer, runtime: Telling):
    found = GraphEncoder(SIZES, runtime)(collate_sequences(rows_of(tokenizer, [10, 9]), tokenizer.specials.pad))
    assert found.last_hidden_state.shape == (20, 4)
    assert found.to_padded()[1, 9].tolist() == [0, 0, 0, 0]


def test_an_engine_feeds_it_like_any_encoder(tokenizer: Tokenizer, runtime: Telling):
    rows = rows_of(tokenizer, [5, 17, 3, 9])
    engine = TorchEngine(GraphEncoder(SIZES, runtime), tokenizer)
    found = engine.predict(rows, lambda batch: [len(row.input_ids) for row in batch.sequences])
    assert list(found) == [5, 17, 3, 9]


def test_the_last_layer_is_there_and_others_are_refused(runtime: Telling):
    layers = LastLayerOnly.from_last(torch.ones(2, 4), 3, runtime.name)
    assert layers[-1] is layers[3]
    assert STRATEGIES["last"](layers).tolist() == torch.ones(2, 4).tolist()
    for name in ("embeddings", "second-to-last", "sum-all"):
        with pytest.raises(FolderError, match="a model in a runtime gives its last layer and answers only"):
            STRATEGIES[name](layers)
    with pytest.raises(FolderError, match="use the folder that it was exported from"):
        list(layers)


@pytest.mark.parametrize("part", ["layers", "positions", "segments", "norm", "pooler"])
def test_parts_inside_the_graph_are_refused_in_one_sentence(runtime: Telling, part: str):
    with pytest.raises(FolderError, match="need the weights"):
        getattr(GraphEncoder(SIZES, runtime), part)


def test_pieces_have_a_device_and_no_vectors(runtime: Telling):
    encoder = GraphEncoder(SIZES, runtime)
    assert encoder.token_embeddings.weight.device == torch.device("cpu")
    with pytest.raises(FolderError, match="need the weights"):
        encoder.token_embeddings(torch.tensor([1]))


def test_an_unknown_attribute_is_an_ordinary_mistake(runtime: Telling):
    with pytest.raises(AttributeError, match="nonsense"):
        GraphEncoder(SIZES, runtime).nonsense  # noqa: B018


def test_the_digest_stands_for_the_weights(runtime: Telling):
    assert GraphEncoder(SIZES, runtime).state_dict()["digest"].tolist() == list(b"0123")


def test_scores_of_blanks_are_computed_where_they_are_asked(tokenizer: Tokenizer, runtime: Telling):
    """Rows of 300 places: one is run at a time, and the middle one, in which nothing is asked, not at all."""
    encoder = GraphEncoder(SIZES, runtime, HEAD_OUTPUTS["blanks"])
    encoded = encoder(collate_sequences(rows_of(tokenizer, [300, 300, 300]), tokenizer.specials.pad))
    assert runtime.shapes == []
    found = encoded.gather(torch.tensor([7, 299, 601]))
    assert found[:, 2].tolist() == [7, 299, 1]
    assert runtime.shapes == [(1, 300), (1, 300)]
    assert set(runtime.wanted) == {("logits",)}


def test_too_long_rows_and_other_ways_to_read_are_refused(tokenizer: Tokenizer, runtime: Telling):
    encoder = GraphEncoder(SIZES, runtime)
    ones = torch.ones(1, 401, dtype=torch.long)
    with pytest.raises(InputError, match="longer than the 400 positions"):
        encoder(Batch(ones, ones, torch.tensor([401])))
    short = ones[:, :4]
    with pytest.raises(SettingsError, match="reads both ways only"):
        encoder(Batch(short, short, torch.tensor([4]), attention="left"))
