"""`bertworks embed` as a person meets it: what is printed, and one sentence for every mistake."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.cli import main
from bertworks.encoders.bert import Bert, BertConfig, config_to_dict, tensor_names
from bertworks.inference.model import load
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气好坏我们去公园玩吧，。", "hello", "##s"]
Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain encoder, and the same one with a sentence-transformers pooling."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    sizes = BertConfig(
        len(PIECES),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    encoder = Bert(sizes, torch.Generator().manual_seed(0))
    tensors = to_hf_names(encoder.state_dict(), tensor_names(sizes))
    for name in ("plain", "pooled"):
        tokenizer = Tokenizer.load(folder / "vocab.txt")
        write_folder(folder / name, config_to_dict(sizes, ["BertModel"]), tensors, tokenizer, {})
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in ("Pooling", "Normalize")]
    (folder / "pooled" / "modules.json").write_text(json.dumps(modules))
    (folder / "pooled" / "Pooling").mkdir()
    (folder / "pooled" / "Pooling" / "config.json").write_text('{"pooling_mode": ["cls", "max"]}')
    return folder


@pytest.fixture
def embed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], one_thread: None
) -> Run:
    """Run `bertworks embed` in this process, beside a file of texts; `plain` and `pooled` are models."""
    (tmp_path / "texts.txt").write_text("今天天气好。\n\nhellos\n" + "天" * 20 + "\n", encoding="utf-8")
    for name in ("plain", "pooled"):
        (tmp_path / name).symlink_to(models / name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bertworks", "embed", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


def test_embed_says_what_it_made_and_how(embed: Run):
    done = embed("plain", "texts.txt", "--out", "v.npy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "v.npy: 4 texts, vectors of 8 numbers",
        "pooling: mean (the model names none; choose with --pooling)",
        "empty texts (given the vector that the model has for no text): 1",
        "texts read in several windows: 1",
    ]
    assert "embed: 4 of 4 texts" in done.stderr
    assert np.load("v.npy", mmap_mode="r").shape == (4, 8)


def test_the_pooling_of_a_sentence_transformers_folder_is_obeyed_and_said(embed: Run):
    done = embed("pooled", "texts.txt", "--out", "v.npy")
    assert "v.npy: 4 texts, vectors of 16 numbers\npooling: first and max, scaled to length 1\n" in done.stdout
    np.testing.assert_allclose(np.linalg.norm(np.load("v.npy"), axis=1), 1.0, atol=1e-6)
    assert (
        "pooling: max, scaled to length 1\n"
        in embed("pooled", "texts.txt", "--out", "m.npy", "--pooling", "max").stdout
    )


def test_truncate_says_how_much_was_cut(embed: Run):
    done = embed("plain", "texts.txt", "--out", "v.npy", "--truncate", "--pooling", "first")
    assert "pooling: first\n" in done.stdout
    assert "texts cut at their end: 1\npieces cut: 6\n" in done.stdout


def test_the_window_rule_of_a_folder_is_obeyed(embed: Run, models: Path, tmp_path: Path):
    shutil.copytree(models / "plain", tmp_path / "ruled")
    told = {"window": {"length": 12, "overlap": 2, "truncate": True}}
    (tmp_path / "ruled" / "bertworks.json").write_text(json.dumps(told))
    done = embed("ruled", "texts.txt", "--out", "v.npy")
    assert "texts cut at their end: 1\npieces cut: 10\n" in done.stdout  # 10 of 20 fit beside the special ones
    ours = load(tmp_path / "ruled").encode(Path("texts.txt").read_text(encoding="utf-8").splitlines())
    np.testing.assert_allclose(np.load("v.npy"), ours, atol=1e-6)


def test_words_of_a_table_in_half_precision(embed: Run, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("n\tbody\n1\thellos，今天\n", encoding="utf-8")
    done = embed("plain", "a.tsv", "--text", "body", "--out", "words", "--words", "--half", "--layers", "sum-all")
    assert done.stdout == "words: 1 texts, 4 words, vectors of 8 numbers\npooling: mean\n"
    assert np.load("words/vectors.npy").dtype == np.float16
    assert np.load("words/offsets.npy").tolist() == [[0, 6], [6, 7], [7, 8], [8, 9]]


def test_pieces_as_json_lines_and_parquet(embed: Run):
    import pyarrow.parquet as pq

    for name in ("jsonl", "parquet"):
        done = embed("plain", "texts.txt", "--out", f"v.{name}", "--pieces", "--format", name)
        assert done.stdout.splitlines()[0] == f"v.{name}: 4 texts, 28 pieces, vectors of 8 numbers"
    lines = [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()]
    assert [(line["text"], line["start"], line["end"]) for line in lines[5:8]] == [(0, 5, 6), (2, 0, 5), (2, 5, 6)]
    np.testing.assert_array_equal(
        np.array([line["vector"] for line in lines], dtype=np.float32),
        np.array(pq.read_table("v.parquet")["vector"].to_pylist(), dtype=np.float32),
    )


def test_standard_input_is_a_file_too(embed: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("今天\n好".encode())))
    assert "v.npy: 2 texts" in embed("plain", "-", "--out", "v.npy").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plain", "nothing.txt", "--out", "v.npy"], "nothing.txt does not exist; check the name"),
        (["./no/model", "texts.txt", "--out", "v.npy"], "there is no folder ./no/model"),
        (["plain", "texts.txt", "--out", "plain"], "plain is a folder, but a file of vectors is to be written"),
        (["plain", "texts.txt", "--out", "texts.txt"], "is the file of texts itself"),
        (["plain", "texts.txt", "--out", "v.npy", "--layers", "top"], "no choice of layers 'top'"),
        (["plain", "texts.txt", "--out", "v.npy", "--layers", "concat-last-four"], "needs 4 layers"),
        (["plain", "texts.txt", "--out", "v.npy", "--pooling", "sum"], "no pooling 'sum'; choose one of: mean"),
        (["plain", "texts.txt", "--out", "v.npy", "--format", "csv"], "no format 'csv'"),
        (["plain", "texts.txt", "--out", "v.npy", "--words", "--pieces"], "exclude each other"),
        (["plain", "texts.txt", "--out", "v.npy", "--text", "body"], "no column 'body'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(embed: Run, tmp_path: Path, arguments: list[str], said: str):
    done = embed(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("bertworks: ")
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "pooled", "texts.txt"]
