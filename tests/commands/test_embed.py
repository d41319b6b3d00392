"""Embedding a file: what is written, what is told, and a run that is killed twice and gives the same bytes."""

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

from bertworks.commands.embed import EmbedRequest, EmbedResult, embed, fingerprint
from bertworks.embeddings import vectors
from bertworks.embeddings.formats import read_metadata
from bertworks.encoders.bert import Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import InputError, SettingsError
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.progress import Progress
from bertworks.vocabulary.tokenizer import Tokenizer

WIDTH = 8
Run = Callable[..., EmbedResult]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A folder with a small model and 100 texts of 0 to 60 words, of which 14 fit into a row."""
    folder = tmp_path_factory.mktemp("embed")
    sizes = BertConfig(
        tokenizer.vocab_size,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,
    )
    encoder = Bert(sizes, torch.Generator().manual_seed(0))
    tensors = to_hf_names(encoder.state_dict(), tensor_names(sizes))
    write_folder(folder / "model", config_to_dict(sizes, ["BertModel"]), tensors, tokenizer, {})
    texts = [" ".join(f"w{61 * row + word}" for word in range(row * 7 % 61)) for row in range(100)]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    def run(out: str = "v.npy", **asked: Any) -> EmbedResult:
        return embed(EmbedRequest(str(folder / "model"), str(folder / "texts.txt"), tmp_path / out, **asked))

    return run


def test_a_vector_a_text_and_what_happened_is_told(run: Run, tmp_path: Path):
    done = run()
    assert np.load(tmp_path / "v.npy", mmap_mode="r").shape == (100, WIDTH)
    assert (done.num_texts, done.num_rows, done.vector_size, done.num_resumed) == (100, 100, WIDTH, 0)
    assert done.pooling.kinds == ("mean",)
    assert not done.pooling.is_explicit
    long = sum(row * 7 % 61 > 14 for row in range(100))
    assert done.counts == {
        "empty texts (given the vector that the model has for no text)": 2,
        "texts read in several windows": long,
    }


def test_truncate_counts_what_it_cuts(run: Run):
    done = run(truncate=True)
    cut = [max(0, row * 7 % 61 - 14) for row in range(100)]
    assert done.counts["texts cut at their end"] == sum(map(bool, cut))
    assert done.counts["pieces cut"] == sum(cut)
    assert "texts read in several windows" not in done.counts


@pytest.mark.parametrize("unit", ["words", "pieces"])
def test_every_piece_of_a_long_file_has_its_row(run: Run, folder: Path, tmp_path: Path, unit: str):
    run("folder", unit=unit, layers="embeddings")
    index = np.load(tmp_path / "folder" / "index.npy")
    offsets = np.load(tmp_path / "folder" / "offsets.npy")
    for number, text in enumerate((folder / "texts.txt").read_text().splitlines()):
        places = offsets[index[number] : index[number + 1]].tolist()
        assert [text[start:end] for start, end in places] == text.split()


def test_budget_changes_nothing_beyond_rounding(run: Run, tmp_path: Path):
    run("one.npy", budget=16)
    run("two.npy", budget=4_096)
    np.testing.assert_allclose(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"), rtol=0, atol=1e-6)


def test_progress_tells_how_many_of_how_many(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vectors, "_MAX_TEXTS", 40)
    seen: list[Progress] = []
    embed(EmbedRequest(str(folder / "model"), str(folder / "texts.txt"), tmp_path / "v.npy"), seen.append)
    assert [(one.done, one.total, one.unit) for one in seen] == [(n, 100, "texts") for n in (40, 80, 100)]


# Killed with a signal that cannot be caught: after the second portion was recorded, or just before.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from bertworks.features import store, vectors
from bertworks.commands.embed import EmbedRequest, embed
torch.set_num_threads(1)
vectors._TEXTS = 16
where, model, file, out, unit = sys.argv[1:]
record, left = store.write_json, [2]
def recording(path, told):
    left[0] -= 1
    if not left[0] and where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    record(path, told)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
store.write_json = recording
embed(EmbedRequest(model, file, Path(out), unit=unit))
"""


@pytest.mark.parametrize(
    ("unit", "kills", "resumed"),
    [("texts", ["after"], 32), ("pieces", ["after", "before"], 48)],  # the second of two portions may not be recorded
)
def test_killed_and_taken_up_it_gives_the_same_bytes(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, kills: list[str], resumed: int
):
    monkeypatch.setattr(vectors, "_MAX_TEXTS", 16)
    run("straight", unit=unit)
    for where in kills:
        arguments = [where, folder / "model", folder / "texts.txt", tmp_path / "killed", unit]
        command = [sys.executable, "-c", KILLED, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert not (tmp_path / "killed").exists()
    assert run("killed", unit=unit).num_resumed == resumed
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    names = ["."] if unit == "texts" else ["vectors.npy", "index.npy", "offsets.npy", "manifest.json"]
    for name in names:
        assert (straight / name).read_bytes() == (killed / name).read_bytes()
    assert read_metadata(straight) == read_metadata(killed)
    assert not list(tmp_path.glob(".*"))


def test_any_weight_changes_the_fingerprint():
    sizes = BertConfig(
        20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=8
    )
    encoder, same = (Bert(sizes, torch.Generator().manual_seed(0)) for _ in range(2))
    assert fingerprint(encoder) == fingerprint(same)
    with torch.no_grad():
        encoder.layers[0].output.bias[3] += 1e-6
    assert fingerprint(encoder) != fingerprint(same)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"unit": "letters"}, "no unit 'letters'; choose one of: texts, words, pieces"),
        ({"format": "xml"}, "no format 'xml'; choose one of: npy, parquet, jsonl"),
        ({"unit": "pieces", "pooling": "max"}, "--pooling joins pieces, but --pieces asks for each"),
        ({"pooling": "median"}, "no pooling 'median'"),
        ({"layers": "sum-last-four"}, "'sum-last-four' needs 4 layers, but the model has 2"),
        ({"layers": "all"}, "no choice of layers 'all'"),
        ({"budget": 0}, "give at least 1 of each"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, tmp_path: Path, asked: dict[str, Any], said: str):
    with pytest.raises(SettingsError, match=said):
        run(**asked)
    assert list(tmp_path.iterdir()) == []


def test_the_texts_themselves_are_never_overwritten(folder: Path):
    texts = folder / "texts.txt"
    with pytest.raises(SettingsError, match="is the file of texts itself"):
        embed(EmbedRequest(str(folder / "model"), str(texts), texts))


def test_a_broken_line_is_found_before_the_work_begins(folder: Path, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("text\tn\na\t1\nb\n")
    with pytest.raises(InputError, match=r"a\.tsv, line 3"):
        embed(EmbedRequest(str(folder / "model"), str(tmp_path / "a.tsv"), tmp_path / "v.npy"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]
