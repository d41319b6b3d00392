"""`bertworks search` with a real model: lines to read, JSON, one sentence for every user error."""

import json
from pathlib import Path

import pytest
from command_line import RunCommand

TEXTS = [
    "The central bank raised interest rates again.",
    "A kitten sleeps in the sun.",
    "Bake the bread for forty minutes.",
    "",
]


@pytest.fixture
def search(
    tmp_path: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand, one_thread: None
) -> RunCommand:
    """Run `bertworks search minilm …` in this process, beside a file of texts."""
    (tmp_path / "minilm").symlink_to(minilm)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: run_command("search", "minilm", *arguments)


def test_search_prints_the_nearest_texts_with_cosine_and_number(search: RunCommand):
    result = search("texts.txt", "a cat taking a nap", "--top-k", "2")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    cosine, number, text = first.split(maxsplit=2)
    assert (number, text) == ("2", TEXTS[1])
    assert float(cosine) > float(second.split()[0])


def test_search_prints_one_line_of_json_and_keeps_the_vectors(search: RunCommand, tmp_path: Path):
    for _ in range(2):  # the second time the vectors are there
        result = search("texts.txt", "monetary policy", "--top-k", "1", "--vectors", "v.npy", "--json")
        assert result.stdout.count("\n") == 1
        values = json.loads(result.stdout)
        assert list(values) == ["query", "hits"]
        assert values["query"] == "monetary policy"
        (hit,) = values["hits"]
        assert (hit["number"], hit["text"]) == (1, TEXTS[0])
        assert (tmp_path / "v.npy").is_file()
    assert "embed" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt", "cat"], "nothing.txt does not exist"),
        (["texts.txt", ""], "the query is empty"),
        (["-", "cat"], "not possible with standard input"),
        (["texts.txt", "cat", "--vectors", "texts.txt"], "is not a .npy file"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(search: RunCommand, arguments: list[str], message: str):
    result = search(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("bertworks: ")
    assert result.stderr.count("\n") == 1
