"""`bertworks embed`: what is printed, and one sentence for every user error."""

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import RunCommand
from encoder_folder import write_random_bert

from bertworks.encoders.bert import BertConfig
from bertworks.inference.model import load
from bertworks.integrity.model_files import accept_changes
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气好坏我们去公园玩吧，。", "hello", "##s"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain encoder, and the same one with a sentence-transformers pooling."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    for name in ("plain", "pooled"):
        write_random_bert(folder / name, config, Tokenizer.load(folder / "vocab.txt"))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in ("Pooling", "Normalize")]
    (folder / "pooled" / "modules.json").write_text(json.dumps(modules))
    (folder / "pooled" / "Pooling").mkdir()
    (folder / "pooled" / "Pooling" / "config.json").write_text('{"pooling_mode": ["cls", "max"]}')
    accept_changes(folder / "pooled")
    return folder


@pytest.fixture
def embed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand, one_thread: None
) -> RunCommand:
    """Run `bertworks embed` in this process, beside a file of texts; `plain` and `pooled` are models."""
    (tmp_path / "texts.txt").write_text("今天天气好。\n\nhellos\n" + "天" * 20 + "\n", encoding="utf-8")
    for name in ("plain", "pooled"):
        (tmp_path / name).symlink_to(models / name)
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: run_command("embed", *arguments)


def test_embed_prints_the_size_and_the_pooling(embed: RunCommand):
    result = embed("plain", "texts.txt", "--output", "v.npy")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "v.npy: 4 texts, vectors of size 8",
        "pooling: mean (not set by the model; choose with --pooling)",
        "empty texts (vector of the special tokens): 1",
        "texts split into several windows: 1",
    ]
    assert "embed: 4 of 4 texts" in result.stderr
    assert np.load("v.npy", mmap_mode="r").shape == (4, 8)


def test_the_pooling_of_a_sentence_transformers_folder_is_used_and_printed(embed: RunCommand):
    result = embed("pooled", "texts.txt", "--output", "v.npy")
    assert "v.npy: 4 texts, vectors of size 16\npooling: cls and max, L2-normalized\n" in result.stdout
    np.testing.assert_allclose(np.linalg.norm(np.load("v.npy"), axis=1), 1.0, atol=1e-6)
    assert (
        "pooling: max, L2-normalized\n" in embed("pooled", "texts.txt", "--output", "m.npy", "--pooling", "max").stdout
    )


def test_truncate_counts_what_was_truncated(embed: RunCommand):
    result = embed("plain", "texts.txt", "--output", "v.npy", "--truncate", "--pooling", "cls")
    assert "pooling: cls\n" in result.stdout
    assert "texts truncated: 1\ntokens truncated: 6\n" in result.stdout


def test_the_former_name_of_a_pooling_is_accepted_and_its_current_name_written(embed: RunCommand):
    result = embed("plain", "texts.txt", "--output", "v.npy", "--pooling", "first")
    assert "pooling: cls\n" in result.stdout
    assert json.loads(Path("v.npy.json").read_text())["pooling"] == ["cls"]
    embed("plain", "texts.txt", "--output", "cls.npy", "--pooling", "cls")
    assert Path("v.npy").read_bytes() == Path("cls.npy").read_bytes()


def test_a_word_has_a_first_token_but_no_cls(embed: RunCommand):
    result = embed("plain", "texts.txt", "--output", "words", "--level", "words", "--pooling", "first")
    assert "pooling: first\n" in result.stdout
    assert json.loads(Path("words/manifest.json").read_text())["pooling"] == ["first"]
    refused = embed("plain", "texts.txt", "--output", "w", "--level", "words", "--pooling", "cls")
    assert refused.returncode == 2
    assert "--pooling cls is for whole texts; for words choose one of: mean, first, max" in refused.stderr


def test_the_window_rule_of_a_folder_is_used(embed: RunCommand, models: Path, tmp_path: Path):
    shutil.copytree(models / "plain", tmp_path / "ruled")
    metadata = {"window": {"max_length": 12, "overlap": 2, "truncate": True}}
    (tmp_path / "ruled" / "bertworks.json").write_text(json.dumps(metadata))
    result = embed("ruled", "texts.txt", "--output", "v.npy")
    assert "texts truncated: 1\ntokens truncated: 10\n" in result.stdout  # 10 of 20 fit beside the special ones
    ours = load(tmp_path / "ruled").encode(Path("texts.txt").read_text(encoding="utf-8").splitlines())
    np.testing.assert_allclose(np.load("v.npy"), ours, atol=1e-6)


def test_word_vectors_of_a_table_in_fp16(embed: RunCommand, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("n\tbody\n1\thellos，今天\n", encoding="utf-8")
    result = embed(
        "plain", "a.tsv", "--text", "body", "--output", "words", "--level", "words", "--half", "--layers", "sum-all"
    )
    assert result.stdout == "words: 1 texts, 4 words, vectors of size 8\npooling: mean\n"
    assert np.load("words/vectors.npy").dtype == np.float16
    assert np.load("words/offsets.npy").tolist() == [[0, 6], [6, 7], [7, 8], [8, 9]]


def test_token_vectors_as_json_lines_and_parquet(embed: RunCommand):
    import pyarrow.parquet as pq

    for name in ("jsonl", "parquet"):
        result = embed("plain", "texts.txt", "--output", f"v.{name}", "--level", "tokens", "--format", name)
        assert result.stdout.splitlines()[0] == f"v.{name}: 4 texts, 28 tokens, vectors of size 8"
    lines = [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()]
    assert [(line["text"], line["start"], line["end"]) for line in lines[5:8]] == [(0, 5, 6), (2, 0, 5), (2, 5, 6)]
    np.testing.assert_array_equal(
        np.array([line["vector"] for line in lines], dtype=np.float32),
        np.array(pq.read_table("v.parquet")["vector"].to_pylist(), dtype=np.float32),
    )


def test_standard_input_is_a_file_too(embed: RunCommand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("今天\n好".encode())))
    assert "v.npy: 2 texts" in embed("plain", "-", "--output", "v.npy").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain", "nothing.txt", "--output", "v.npy"], "nothing.txt does not exist; check the name"),
        (["./no/model", "texts.txt", "--output", "v.npy"], "there is no folder ./no/model"),
        (["plain", "texts.txt", "--output", "plain"], "plain is a folder, but the output is a file of vectors"),
        (["plain", "texts.txt", "--output", "texts.txt"], "--output texts.txt is the input file"),
        (["plain", "texts.txt", "--output", "v.npy", "--layers", "concat-last-four"], "needs 4 layers"),
        (["plain", "texts.txt", "--output", "v.npy", "--text", "body"], "no column 'body'"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(
    embed: RunCommand, tmp_path: Path, arguments: list[str], message: str
):
    result = embed(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("bertworks: ")
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "pooled", "texts.txt"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--layers", "top", "there is no layer strategy 'top'"),
        ("--pooling", "sum", "there is no pooling 'sum'; choose one of: mean"),
        ("--format", "csv", "there is no format 'csv'"),
        ("--level", "pieces", "there is no level 'pieces'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(embed: RunCommand, option: str, value: str, message: str):
    result = embed("plain", "texts.txt", "--output", "v.npy", option, value)
    assert result.returncode == 2
    assert message in result.stderr
