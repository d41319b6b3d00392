"""Vectors of texts, words and tokens: by hand from the encoder, over windows, and parity with sentence-transformers."""

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
    resolve_window_rule,
    stored_window_rule,
)
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.engines.torch_engine import TorchEngine
from bertworks.errors import FolderError, InputError
from bertworks.inference.model import load
from bertworks.models.metadata import read_metadata
from bertworks.sampling.batch import collate_sequences
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.vocabulary.tokenizer import Tokenizer

HIDDEN_SIZE = 16
TEXTS = ["w1 w2", "", "w3 w4a w5ab w6", "w7", "w8 w9 w10 w11 w12 w13", "w2 w1"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> Bert:
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    return Bert(config, torch.Generator().manual_seed(0)).eval()


@pytest.fixture(scope="module")
def engine(encoder: Bert, tokenizer: Tokenizer) -> TorchEngine:
    return TorchEngine(encoder, tokenizer)


def concatenate(batches: Iterator[VectorBatch]) -> VectorBatch:
    parts = list(batches)
    counts = sum((batch.counts for batch in parts), start=type(parts[0].counts)())
    names = ("vectors", "num_rows", "offsets")
    return VectorBatch(*(np.concatenate([getattr(batch, name) for batch in parts]) for name in names), counts)


def layers_of(engine: TorchEngine, text: str) -> list[torch.Tensor]:
    """All hidden states (T, D) of one text that fits into a window, with special tokens."""
    with torch.inference_mode():
        encoded = engine.encoder(collate_sequences([engine.tokenizer.encode(text)], 0))
    return list(encoded.hidden_states)


def assert_close(result: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["mean", "cls", "max"])
def test_text_vectors_pool_all_tokens_including_special_ones(engine: TorchEngine, kind: str):
    result = concatenate(extract_vectors(engine, TEXTS, Extraction(pooling=Pooling(kinds=(kind,)))))
    assert result.vectors.shape == (6, HIDDEN_SIZE)
    assert result.vectors.dtype == np.float32
    assert result.num_rows.tolist() == [1] * 6
    for text, vector in zip(TEXTS, result.vectors, strict=True):
        last = layers_of(engine, text)[-1]
        assert_close(vector, {"mean": last.mean(0), "cls": last[0], "max": last.amax(0)}[kind])


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_token_vectors_use_the_layers_of_the_strategy_without_special_tokens(engine: TorchEngine, name: str):
    result = concatenate(extract_vectors(engine, TEXTS, Extraction("tokens", STRATEGIES[name])))
    assert result.num_rows.tolist() == [2, 0, 7, 1, 6, 2]
    expected = [STRATEGIES[name](layers_of(engine, text))[1:-1] for text in TEXTS]
    assert_close(result.vectors, torch.cat(expected))


def test_offsets_of_tokens_and_words_refer_to_the_text(engine: TorchEngine):
    text = "  w3 w4a, w5ab"
    tokens = concatenate(extract_vectors(engine, [text], Extraction("tokens")))
    assert [text[start:end] for start, end in tokens.offsets.tolist()] == ["w3", "w4", "a", ",", "w5", "a", "b"]
    words = concatenate(extract_vectors(engine, [text], Extraction("words")))
    assert [text[start:end] for start, end in words.offsets.tolist()] == ["w3", "w4a", ",", "w5ab"]
    assert words.num_rows.tolist() == [4]


@pytest.mark.parametrize("kind", ["mean", "first", "max"])
def test_word_vectors_pool_their_tokens(engine: TorchEngine, kind: str):
    (result,) = extract_vectors(engine, ["w3 w4a w5ab", ""], Extraction("words", pooling=Pooling(kinds=(kind,))))
    last = layers_of(engine, "w3 w4a w5ab")[-1][1:-1]
    words = [last[0:1], last[1:3], last[3:6]]
    pool = {
        "mean": lambda vectors: vectors.mean(0),
        "first": lambda vectors: vectors[0],
        "max": lambda vectors: vectors.amax(0),
    }[kind]
    assert_close(result.vectors, torch.stack([pool(vectors) for vectors in words]))
    assert result.num_rows.tolist() == [3, 0]


def long_text(num_words: int) -> str:
    return " ".join(f"w{index}" for index in range(num_words))


def tokens_by_hand(engine: TorchEngine, text: str, window_rule: WindowRule) -> list[torch.Tensor]:
    """The last layer of each token, from the window in which it is farthest from the edges; with [CLS] and [SEP]."""
    tokenizer = engine.tokenizer
    windows = make_windows(tokenizer, [tokenizer.tokenize(text)], window_rule)
    hidden_states = []
    for window in windows.sequences:
        words = text.split()[window.spans[0].first : window.spans[0].first + window.spans[0].count]
        hidden_states.append(layers_of(engine, " ".join(words))[-1])
    best_context: dict[int, tuple[int, torch.Tensor]] = {}
    for window, values in zip(windows.sequences, hidden_states, strict=True):
        span = window.spans[0]
        for offset in range(span.count):
            context = min(offset, span.count - 1 - offset)
            if span.first + offset not in best_context or context > best_context[span.first + offset][0]:
                best_context[span.first + offset] = (context, values[1 + offset])
    return [hidden_states[0][0], *(best_context[token][1] for token in range(len(best_context))), hidden_states[-1][-1]]


@pytest.mark.parametrize("num_words", [14, 15, 40, 101])
def test_each_token_of_a_long_text_counts_once(engine: TorchEngine, num_words: int):
    text, window_rule = long_text(num_words), WindowRule(16, 4)
    expected = tokens_by_hand(engine, text, window_rule)
    assert len(expected) == num_words + 2
    result = concatenate(extract_vectors(engine, ["w5", text, "w6"], Extraction("tokens", window_rule=window_rule)))
    assert result.num_rows.tolist() == [1, num_words, 1]
    assert_close(result.vectors[1:-1], torch.stack(expected[1:-1]))
    assert [text[start:end] for start, end in result.offsets[1:-1].tolist()] == text.split()
    for kind, vector in (("mean", torch.stack(expected).mean(0)), ("max", torch.stack(expected).amax(0))):
        expected = concatenate(
            extract_vectors(engine, ["w5", text], Extraction(pooling=Pooling(kinds=(kind,)), window_rule=window_rule))
        )
        assert_close(expected.vectors[1], vector)
        assert expected.counts == ({"texts split into several windows": 1} if num_words > 14 else {})


def test_first_pooling_averages_the_first_tokens_of_all_windows(engine: TorchEngine):
    text = long_text(20)  # 14 fit; two windows, words 0 to 13 and 6 to 19
    first_tokens = [layers_of(engine, " ".join(text.split()[start : start + 14]))[-1][0] for start in (0, 6)]
    result = concatenate(
        extract_vectors(engine, [text], Extraction(pooling=Pooling(kinds=("cls",)), window_rule=WindowRule(16, 4)))
    )
    assert_close(result.vectors[0], (first_tokens[0] + first_tokens[1]) / 2)


def test_truncation_is_explicit_and_counted(engine: TorchEngine):
    window_rule = WindowRule(16, 4, truncate=True)
    result = concatenate(extract_vectors(engine, [long_text(20), "w1"], Extraction(window_rule=window_rule)))
    assert_close(result.vectors[0], layers_of(engine, long_text(14))[-1].mean(0))
    assert result.counts == {"texts truncated": 1, "tokens truncated": 6}
    words = concatenate(extract_vectors(engine, [long_text(20), "w1"], Extraction("words", window_rule=window_rule)))
    assert words.num_rows.tolist() == [14, 1]


def test_empty_texts_are_counted(engine: TorchEngine):
    result = concatenate(extract_vectors(engine, ["", " \t", "w1"], Extraction()))
    assert result.counts == {"empty texts (vector of the special tokens)": 2}
    assert concatenate(extract_vectors(engine, [""], Extraction("words"))).counts == {"empty texts (no vectors)": 1}
    assert_close(result.vectors[0], layers_of(engine, "")[-1].mean(0))


def test_windows_have_the_max_length_of_the_model():
    assert resolve_window_rule(Pooling(max_length=256), 512) == WindowRule(256, 64)
    assert resolve_window_rule(Pooling(max_length=None), 512) == WindowRule(512, 64)
    assert resolve_window_rule(Pooling(max_length=512), 128, truncate=True) == WindowRule(128, 32, True)


def test_the_stored_window_rule_is_limited_by_the_model():
    model_rule = WindowRule(128, 16)
    assert resolve_window_rule(Pooling(), 512, model_rule=model_rule) == model_rule
    assert resolve_window_rule(Pooling(max_length=64), 512, model_rule=model_rule) == WindowRule(64, 16)
    assert resolve_window_rule(Pooling(), 32, model_rule=model_rule) == WindowRule(32, 8)
    assert resolve_window_rule(Pooling(), 512, model_rule=WindowRule(128, 16, True)) == WindowRule(128, 16, True)
    assert resolve_window_rule(Pooling(), 512, truncate=True, model_rule=model_rule) == WindowRule(128, 16, True)


def test_the_window_rule_is_that_of_the_model_folder(tmp_path: Path, encoder: Bert, tokenizer: Tokenizer):
    assert stored_window_rule({"task": "classify"}) is None
    window_rule = stored_window_rule({"window": {"max_length": 10, "overlap": 2, "truncate": True}})
    assert window_rule == WindowRule(10, 2, True)
    (result,) = embed(encoder, tokenizer, [long_text(20)], Extraction(window_rule=window_rule))
    assert_close(result, layers_of(TorchEngine(encoder, tokenizer), long_text(8))[-1].mean(0))
    (tmp_path / "bertworks.json").write_text('{"window": {"size": 10}}')
    with pytest.raises(FolderError, match=r"bertworks\.json, window: there is no key 'size'"):
        read_metadata(tmp_path)


@pytest.mark.parametrize("unit", ["texts", "words", "tokens"])
def test_group_size_changes_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, unit: str):
    texts = [*TEXTS, long_text(40), *TEXTS]
    extraction = Extraction(unit, window_rule=WindowRule(16, 4))
    expected = concatenate(extract_vectors(engine, texts, extraction))
    monkeypatch.setattr(module, "_MAX_TEXTS", 3)
    monkeypatch.setattr(module, "_MAX_TOKENS", 24)
    batches = list(extract_vectors(engine, texts, extraction))
    assert len(batches) > 4
    grouped = concatenate(iter(batches))
    assert_close(grouped.vectors, expected.vectors)
    assert grouped.num_rows.tolist() == expected.num_rows.tolist()
    assert grouped.offsets.tolist() == expected.offsets.tolist()
    assert grouped.counts == expected.counts


def test_a_stream_is_consumed_one_group_at_a_time(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MAX_TEXTS", 3)
    stream = iter(TEXTS)
    next(extract_vectors(engine, stream, Extraction()))
    assert list(stream) == TEXTS[3:]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(len(TEXTS))), st.integers(4, 64))
def test_order_and_budget_change_nothing(encoder: Bert, tokenizer: Tokenizer, order: list[int], budget: int):
    expected = concatenate(extract_vectors(TorchEngine(encoder, tokenizer), TEXTS, Extraction())).vectors
    texts = [TEXTS[index] for index in order]
    assert_close(
        concatenate(extract_vectors(TorchEngine(encoder, tokenizer, budget), texts, Extraction())).vectors,
        expected[order],
    )


# Parity with sentence-transformers, on a real model.

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    "Naïve café — 北京 is the capital of China!",
    "A",
    "How do I bake sourdough bread without a starter, and how long does it take?",
    "word " * 700,
    'He said: "Don\'t." ',
] + [f"Sentence number {index} " + "continues at length " * (index % 7) for index in range(20)]


def folder_with_pooling(path: Path, minilm: Path, config: dict[str, Any], modules: tuple[str, ...]) -> Path:
    """MiniLM with another pooling."""
    path.mkdir()
    for file in minilm.iterdir():
        if file.is_file() and file.name != "modules.json":
            (path / file.name).symlink_to(file)
    package = "sentence_transformers.models"
    entries = [
        {"idx": index, "name": str(index), "path": f"{index}_{name}" if index else "", "type": f"{package}.{name}"}
        for index, name in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(entries))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 384, **config}))
    return path


NOT_NORMALIZED, NORMALIZED = ("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")


@pytest.mark.parametrize(
    ("config", "modules"),
    [
        ({"pooling_mode_mean_tokens": True}, NORMALIZED),
        ({"pooling_mode_cls_token": True}, NOT_NORMALIZED),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, NOT_NORMALIZED),
    ],
    ids=["mean-normalized", "cls", "max-and-mean"],
)
def test_vectors_equal_sentence_transformers(
    tmp_path: Path, minilm: Path, config: dict[str, Any], modules: tuple[str, ...]
):
    from sentence_transformers import SentenceTransformer

    from bertworks.embeddings.pooling import read_pooling

    folder = folder_with_pooling(tmp_path / "model", minilm, config, modules)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    model = load(folder)
    pooling = read_pooling(folder)
    # sentence-transformers truncates long texts
    extraction = Extraction(pooling=pooling, window_rule=resolve_window_rule(pooling, 512, truncate=True))
    ours = concatenate(extract_vectors(TorchEngine(model.encoder, model.tokenizer), SENTENCES, extraction))
    assert ours.counts["tokens truncated"] == 700 - 254
    np.testing.assert_allclose(ours.vectors, theirs, rtol=0, atol=1e-5)


def test_embed_uses_the_pooling_of_the_folder_and_all_of_a_long_text(minilm: Path):
    model = load(minilm)
    short = [text for text in SENTENCES if len(text) < 200]
    result = model.encode(iter(SENTENCES))
    assert result.shape == (27, 384)
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1.0, atol=1e-6)
    truncated = model.encode(["word " * 254])
    assert np.abs(result[5] - truncated[0]).max() > 1e-3
    max_pooled = model.encode(short[:2], "max")
    assert np.abs(max_pooled - result[:2]).max() > 1e-2
    np.testing.assert_allclose(np.linalg.norm(max_pooled, axis=1), 1.0, atol=1e-6)


def test_embed_of_no_texts_is_empty_and_a_single_string_is_rejected(encoder: Bert, tokenizer: Tokenizer):
    assert embed(encoder, tokenizer, [], Extraction()).shape == (0, HIDDEN_SIZE)
    with pytest.raises(InputError, match="put it into a list"):
        embed(encoder, tokenizer, "w1 w2", Extraction())


def test_inputs_that_are_no_texts_are_refused_with_their_index(minilm: Path):
    model = load(minilm)
    inputs: list[tuple[Any, str]] = [([None], "text 0 is None"), (["a", 1], "text 1 is 1"), ({}, "a list")]
    for texts, message in inputs:
        with pytest.raises(InputError, match=message):
            model.encode(texts)
