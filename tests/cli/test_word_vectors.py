"""`bertworks word-vectors`: train, evaluate, look up, convert, and one sentence for every user error."""

import json
import sys
from pathlib import Path

import pytest
from command_line import RunCommand


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand) -> RunCommand:
    """Run `bertworks word-vectors …` in this process, beside some text and vectors of four words."""
    (tmp_path / "text.txt").write_text("The cat and the dog ate the bread. " * 40)
    (tmp_path / "v.txt").write_text("man 1 0 0\nwoman 1 1 0\nking 1 0 2\nqueen 1 1 2\nboy 1 0.1 0\n")
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: run_command("word-vectors", *arguments)


@pytest.mark.parametrize("kind", ["glove", "skip-gram", "cbow"])
def test_train_writes_a_folder(vectors: RunCommand, tmp_path: Path, kind: str):
    arguments = [
        "train",
        "text.txt",
        "--kind",
        kind,
        "--vector-size",
        "4",
        "--epochs",
        "1",
        "--workers",
        "1",
        "--output",
        "v",
    ]
    result = vectors(*arguments)
    assert result.returncode == 0, result.stderr
    assert f"6  words, vectors of size 4 ({kind})" in result.stdout
    assert result.stdout.endswith("vectors: v\n")
    values = json.loads((tmp_path / "v" / "bertworks.json").read_text())
    assert (values["kind"], values["words"], values["settings"]["threads"]) == (kind, 6, 1)
    result = vectors("nearest", "v", "dog", "--top-k", "2")
    assert len(result.stdout.splitlines()) == 2


def test_train_prints_one_line_of_json(vectors: RunCommand):
    result = vectors(*"train text.txt --kind glove --epochs 1 --workers 1 --output v --json".split())
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout)["words"] == 6


def test_word2vec_with_several_threads_is_reported_as_not_reproducible(vectors: RunCommand):
    result = vectors(*"train text.txt --epochs 1 --threads 2 --workers 1 --output v".split())
    assert "trained with 2 threads: not reproducible" in result.stdout


def test_nearest_and_analogy_print_cosines_and_words(vectors: RunCommand):
    assert vectors("nearest", "v.txt", "man", "--top-k", "1").stdout == " 0.9950  boy\n"
    assert vectors("nearest", "v.txt", "man", "king", "--top-k", "1").stdout.splitlines()[::2] == ["man:", "king:"]
    assert vectors("analogy", "v.txt", "man", "woman", "king", "--top-k", "1").stdout.split()[1] == "queen"
    values = json.loads(vectors("analogy", "v.txt", "man", "woman", "king", "--json").stdout)
    assert [list(one) for one in values] == [["word", "cosine"]] * 2


def test_eval_prints_scores_and_coverage(vectors: RunCommand, tmp_path: Path):
    (tmp_path / "pairs.tsv").write_text("man\tboy\t9\nman\tking\t5\nman\tmoon\t1\n")
    (tmp_path / "analogies.txt").write_text(": family\nman woman king queen\nman woman king moon\n: none\na b c d\n")
    result = vectors("eval", "v.txt", "pairs.tsv", "analogies.txt")
    assert "pairs.tsv: Spearman 1.0000 over 2 of 3 pairs" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["family", "1", "1", "2", "100.0%"] in rows
    assert ["none", "0", "0", "1", "0.0%"] in rows
    assert ["all", "1", "1", "3", "100.0%"] in rows
    values = json.loads(vectors("eval", "v.txt", "pairs.tsv", "analogies.txt", "--json").stdout)
    assert values["pairs.tsv"]["num_known"] == 2
    assert values["analogies.txt"][-1]["section"] == "all"


def test_senses_plots_a_word_by_each_model(vectors: RunCommand, tmp_path: Path):
    vectors("convert", "v.txt", "--output", "v")
    (tmp_path / "uses.tsv").write_text("text\tlabel\nthe king sat\tchess\na king ruled\tman\n")
    result = vectors("senses", "king", "uses.tsv", "v", "--output", "king.svg")
    assert result.stdout.startswith("v: 1 distinct vectors; nearest neighbor of the same sense 0%")
    assert result.stdout.endswith("figure: king.svg\n")
    assert "2 sentences, one vector" in (tmp_path / "king.svg").read_text()


def test_convert_writes_what_others_read(vectors: RunCommand, tmp_path: Path):
    result = vectors("convert", "v.txt", "--format", "word2vec", "--output", "w.txt")
    assert result.stdout == "5 words, vectors of size 3: w.txt\n"
    assert (tmp_path / "w.txt").read_text().splitlines()[:2] == ["5 3", "man 1.0 0.0 0.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nearest nothing.txt man", "nothing.txt cannot be read"),
        ("nearest v.txt mann", "did you mean man"),
        ("train text.txt --kind cbow --x-max 10 --output v", "--x-max has no effect on cbow; leave it out"),
        ("train nothing.txt --output v", "nothing.txt does not exist"),
        ("eval v.txt text.txt", "text.txt has no pairs or questions; give two words and a score"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(vectors: RunCommand, arguments: str, message: str):
    result = vectors(*arguments.split())
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("bertworks: ")
    assert result.stderr.count("\n") == 1


def test_without_gensim_word2vec_names_the_extra(vectors: RunCommand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    result = vectors("train", "text.txt", "--output", "v")
    assert result.returncode == 2
    assert "pip install 'bertworks[vectors]'" in result.stderr
