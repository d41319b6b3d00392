"""Embedding a file: output, counts, and a run that is killed twice and gives the same bytes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_folder import write_random_bert

from bertworks.commands.embed import EmbedRequest, EmbedResult, embed, fingerprint
from bertworks.embeddings import vectors
from bertworks.embeddings.formats import read_metadata
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import InputError, SettingsError
from bertworks.progress import Progress
from bertworks.vocabulary.tokenizer import Tokenizer

HIDDEN_SIZE = 8
Run = Callable[..., EmbedResult]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A folder with a small model and 100 texts of 0 to 60 words, of which 14 fit into a window."""
    folder = tmp_path_factory.mktemp("embed")
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    write_random_bert(folder / "model", config, tokenizer)
    texts = [" ".join(f"w{61 * index + word}" for word in range(index * 7 % 61)) for index in range(100)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    def run(output: str = "v.npy", **options: Any) -> EmbedResult:
        return embed(
            EmbedRequest(
                model=str(folder / "model"), file=str(folder / "texts.txt"), output=tmp_path / output, **options
            )
        )

    return run


def test_embed_writes_one_vector_per_text_and_counts(run: Run, tmp_path: Path):
    result = run()
    assert np.load(tmp_path / "v.npy", mmap_mode="r").shape == (100, HIDDEN_SIZE)
    assert (result.num_texts, result.num_rows, result.vector_size, result.num_resumed) == (100, 100, HIDDEN_SIZE, 0)
    assert result.pooling.kinds == ("mean",)
    assert not result.pooling.is_explicit
    num_long = sum(index * 7 % 61 > 14 for index in range(100))
    assert result.counts == {
        "empty texts (vector of the special tokens)": 2,
        "texts split into several windows": num_long,
    }


def test_truncated_texts_and_tokens_are_counted(run: Run):
    result = run(truncate=True)
    num_truncated = [max(0, index * 7 % 61 - 14) for index in range(100)]
    assert result.counts["texts truncated"] == sum(map(bool, num_truncated))
    assert result.counts["tokens truncated"] == sum(num_truncated)
    assert "texts split into several windows" not in result.counts


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_every_word_of_a_long_file_has_a_vector(run: Run, folder: Path, tmp_path: Path, unit: str):
    run("folder", unit=unit, layers="embeddings")
    starts = np.load(tmp_path / "folder" / "index.npy")
    offsets = np.load(tmp_path / "folder" / "offsets.npy")
    for index, text in enumerate((folder / "texts.txt").read_text().splitlines()):
        text_offsets = offsets[starts[index] : starts[index + 1]].tolist()
        assert [text[start:end] for start, end in text_offsets] == text.split()


def test_the_token_budget_changes_only_rounding(run: Run, tmp_path: Path):
    run("one.npy", budget=16)
    run("two.npy", budget=4_096)
    np.testing.assert_allclose(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"), rtol=0, atol=1e-6)


def test_progress_reports_done_and_total(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vectors, "_MAX_TEXTS", 40)
    events: list[Progress] = []
    embed(
        EmbedRequest(model=str(folder / "model"), file=str(folder / "texts.txt"), output=tmp_path / "v.npy"),
        events.append,
    )
    assert [(event.done, event.total, event.unit) for event in events] == [(n, 100, "texts") for n in (40, 80, 100)]


# Killed with a signal that cannot be caught: after the second batch is recorded, or just before.
KILLED_RUN = """
import os, signal, sys
from pathlib import Path
import torch
from bertworks.embeddings import store, vectors
from bertworks.commands.embed import EmbedRequest, embed
torch.set_num_threads(1)
vectors._MAX_TEXTS = 16
moment, model, file, output, unit = sys.argv[1:]
write_json, num_left = store.write_json, [2]
def write_and_kill(path, content):
    num_left[0] -= 1
    if not num_left[0] and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write_json(path, content)
    if not num_left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
store.write_json = write_and_kill
embed(EmbedRequest(model=model, file=file, output=Path(output), unit=unit, precision="fp32"))
"""


@pytest.mark.parametrize(
    ("unit", "moments", "resumed"),
    [("texts", ["after"], 32), ("tokens", ["after", "before"], 48)],  # the second of two batches may not be recorded
)
def test_a_killed_and_resumed_run_gives_the_same_bytes(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, moments: list[str], resumed: int
):
    monkeypatch.setattr(vectors, "_MAX_TEXTS", 16)
    run("complete", unit=unit)
    for moment in moments:
        arguments = [moment, folder / "model", folder / "texts.txt", tmp_path / "killed", unit]
        command = [sys.executable, "-c", KILLED_RUN, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert result.returncode == -signal.SIGKILL, result.stderr.decode()
        assert not (tmp_path / "killed").exists()
    assert run("killed", unit=unit).num_resumed == resumed
    complete, killed = tmp_path / "complete", tmp_path / "killed"
    names = ["."] if unit == "texts" else ["vectors.npy", "index.npy", "offsets.npy", "manifest.json"]
    for name in names:
        assert (complete / name).read_bytes() == (killed / name).read_bytes()
    assert read_metadata(complete) == read_metadata(killed)
    assert not list(tmp_path.glob(".*"))


def test_any_weight_changes_the_fingerprint():
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    encoder, copy = (Bert(config, torch.Generator().manual_seed(0)) for _ in range(2))
    assert fingerprint(encoder) == fingerprint(copy)
    with torch.no_grad():
        encoder.layers[0].output.bias[3] += 1e-6
    assert fingerprint(encoder) != fingerprint(copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "letters"}, "no unit 'letters'; choose one of: texts, words, tokens"),
        ({"format": "xml"}, "no format 'xml'; choose one of: npy, parquet, jsonl"),
        ({"unit": "tokens", "pooling": "max"}, "--pooling combines tokens, but --level tokens writes each"),
        ({"pooling": "median"}, "no pooling 'median'"),
        ({"layers": "sum-last-four"}, "'sum-last-four' needs 4 layers, but the model has 2"),
        ({"layers": "all"}, "no feature strategy 'all'"),
        ({"budget": 0}, "both must be at least 1"),
    ],
)
def test_invalid_requests_are_rejected(run: Run, tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        run(**options)
    assert list(tmp_path.iterdir()) == []


def test_the_input_file_is_never_overwritten(folder: Path):
    texts = folder / "texts.txt"
    with pytest.raises(SettingsError, match="is the input file"):
        embed(EmbedRequest(model=str(folder / "model"), file=str(texts), output=texts))


def test_a_malformed_line_is_reported_before_the_model_runs(folder: Path, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("text\tn\na\t1\nb\n")
    with pytest.raises(InputError, match=r"a\.tsv, line 3"):
        embed(EmbedRequest(model=str(folder / "model"), file=str(tmp_path / "a.tsv"), output=tmp_path / "v.npy"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]


def test_texts_that_the_vocabulary_cannot_read_are_a_warning(folder: Path, tmp_path: Path, run: Run):
    assert run().warnings == []
    (tmp_path / "zh.txt").write_text("约翰住在罗马。\n", encoding="utf-8")
    request = EmbedRequest(model=str(folder / "model"), file=str(tmp_path / "zh.txt"), output=tmp_path / "zh.npy")
    (warning,) = embed(request).warnings
    assert (warning.type, warning.ratio) == ("unknown_tokens", 1.0)
