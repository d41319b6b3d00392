"""`bertworks vectors` as a person meets it: train, score, look up, convert, and one sentence for every mistake."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertworks.cli import main

Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `bertworks vectors …` in this process, beside some text and vectors of four words."""
    (tmp_path / "text.txt").write_text("The cat and the dog ate the bread. " * 40)
    (tmp_path / "v.txt").write_text("man 1 0 0\nwoman 1 1 0\nking 1 0 2\nqueen 1 1 2\nboy 1 0.1 0\n")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bertworks", "vectors", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("kind", ["glove", "skip-gram", "cbow"])
def test_train_writes_a_folder_and_tells_what_was_left_out(vectors: Run, tmp_path: Path, kind: str):
    arguments = ["train", "text.txt", "--kind", kind, "--width", "4", "--epochs", "1", "--workers", "1", "--out", "v"]
    done = vectors(*arguments)
    assert done.returncode == 0, done.stderr
    assert f"6  words with a vector of width 4 ({kind})" in done.stdout
    assert done.stdout.endswith("vectors: v\n")
    told = json.loads((tmp_path / "v" / "bertworks.json").read_text())
    assert (told["kind"], told["words"], told["settings"]["threads"]) == (kind, 6, 1)
    done = vectors("nearest", "v", "dog", "--top", "2")
    assert len(done.stdout.splitlines()) == 2


def test_train_prints_one_line_of_json(vectors: Run):
    done = vectors(*"train text.txt --kind glove --epochs 1 --workers 1 --out v --json".split())
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["words"] == 6


def test_more_threads_of_word2vec_are_said_to_be_beyond_repeating(vectors: Run):
    done = vectors(*"train text.txt --epochs 1 --threads 2 --workers 1 --out v".split())
    assert "trained with 2 threads: another run will not give the same vectors" in done.stdout


def test_nearest_and_analogy_print_cosines_and_words(vectors: Run):
    assert vectors("nearest", "v.txt", "man", "--top", "1").stdout == " 0.9950  boy\n"
    assert vectors("nearest", "v.txt", "man", "king", "--top", "1").stdout.splitlines()[::2] == ["man:", "king:"]
    assert vectors("analogy", "v.txt", "man", "woman", "king", "--top", "1").stdout.split()[1] == "queen"
    told = json.loads(vectors("analogy", "v.txt", "man", "woman", "king", "--json").stdout)
    assert [list(one) for one in told] == [["word", "cosine"]] * 2


def test_eval_tells_scores_and_coverage(vectors: Run, tmp_path: Path):
    (tmp_path / "pairs.tsv").write_text("man\tboy\t9\nman\tking\t5\nman\tmoon\t1\n")
    (tmp_path / "asked.txt").write_text(": family\nman woman king queen\nman woman king moon\n: none\na b c d\n")
    done = vectors("eval", "v.txt", "pairs.tsv", "asked.txt")
    assert "pairs.tsv: Spearman 1.0000 over 2 of 3 pairs" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["family", "1", "1", "2", "100.0%"] in rows
    assert ["none", "0", "0", "1", "0.0%"] in rows
    assert ["all", "1", "1", "3", "100.0%"] in rows
    told = json.loads(vectors("eval", "v.txt", "pairs.tsv", "asked.txt", "--json").stdout)
    assert told["pairs.tsv"]["num_known"] == 2
    assert told["asked.txt"][-1]["section"] == "all"


def test_senses_draws_a_word_by_each_model(vectors: Run, tmp_path: Path):
    vectors("convert", "v.txt", "--out", "v")
    (tmp_path / "uses.tsv").write_text("text\tlabel\nthe king sat\tchess\na king ruled\tman\n")
    done = vectors("senses", "king", "uses.tsv", "v", "--out", "king.svg")
    assert done.stdout.startswith("v: 1 different vectors; nearest other sentence of the same sense 0%")
    assert done.stdout.endswith("the picture: king.svg\n")
    assert "2 sentences, one vector" in (tmp_path / "king.svg").read_text()


def test_convert_writes_what_others_read(vectors: Run, tmp_path: Path):
    done = vectors("convert", "v.txt", "--format", "word2vec", "--out", "w.txt")
    assert done.stdout == "5 words of width 3: w.txt\n"
    assert (tmp_path / "w.txt").read_text().splitlines()[:2] == ["5 3", "man 1.0 0.0 0.0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nearest nothing.txt man", "nothing.txt cannot be read"),
        ("nearest v.txt mann", "did you mean man"),
        ("train text.txt --kind elmo --out v", "kind 'elmo' is unknown; choose one of: glove, skip-gram, cbow"),
        ("train text.txt --kind cbow --x-max 10 --out v", "--x-max means nothing to cbow; leave it out"),
        ("train nothing.txt --out v", "nothing.txt does not exist"),
        ("convert v.txt --format pickle --out w", "format 'pickle' is unknown"),
        ("eval v.txt text.txt", "text.txt holds nothing to ask; give a list of two words and a score"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(vectors: Run, arguments: str, said: str):
    done = vectors(*arguments.split())
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("bertworks: ")
    assert done.stderr.count("\n") == 1


def test_without_gensim_word2vec_names_the_extra(vectors: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    done = vectors("train", "text.txt", "--out", "v")
    assert done.returncode == 2
    assert "pip install 'bertworks[vectors]'" in done.stderr
