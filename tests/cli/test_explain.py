"""`bertworks explain`: marks, JSON and a page, for each kind of model; and what it refuses."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bertworks.cli import main
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.answer import Answer
from bertworks.tasks.choose import Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import Tag
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the film was good bad john lives in paris who".split()]
SIZES = BertConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    initializer_range=0.3,
)
TASKS: dict[str, Task] = {
    "liked": Classify(("no", "yes")),
    "alike": Regress(),
    "endings": Choose(),
    "names": Tag(("O", "B-PER", "I-PER")),
    "answers": Answer(),
}
Run = Callable[..., "Done"]

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model for each task, all of random weights."""
    folder = tmp_path_factory.mktemp("explain")
    for name, task in TASKS.items():
        generator = torch.Generator().manual_seed(0)
        tokenizer = Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))
        module = TaskModule(Bert(SIZES, generator), task, generator)
        save_finetuned(folder / name, Predictor(module, tokenizer, WindowRule(32, 8)), {})
    return folder


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bertworks", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("model", "texts", "target"),
    [
        ("liked", ["The film was good", "who"], "'yes'"),
        ("alike", ["The film was good", "The film was bad"], "value"),
        ("endings", ["The film was", "good", "bad", "in Paris"], "ending 2"),
        ("names", ["John lives in Paris"], "'Paris' as B-PER"),
        ("answers", ["who lives in Paris", "John was in Paris"], "start"),
    ],
)
def test_every_kind_of_model_is_explained(bertworks: Run, model: str, texts: list[str], target: str):
    told = {"'yes'": "yes", "ending 2": "2", "'Paris' as B-PER": "Paris=B-PER"}.get(target, target)
    done = bertworks("explain", model, *texts, "--target", told, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["target"].startswith(target)
    assert [text["text"] for text in found["texts"]] == texts
    total = sum(word["weight"] for text in found["texts"] for word in text["words"])
    assert total == pytest.approx(found["output"] - found["baseline_output"] + found["gap"])
    sizes = sum(abs(piece["weight"]) for text in found["texts"] for piece in text["pieces"])
    assert abs(found["gap"]) <= 0.01 * sizes


def test_off_a_terminal_words_have_marks_and_a_page_is_written(bertworks: Run, folder: Path):
    done = bertworks("explain", "liked", "The film was good", "--html", "picture.html")
    assert done.returncode == 0
    headline, text = done.stdout.splitlines()
    assert headline.endswith("with every word masked")
    assert "[+++]" in text or "[---]" in text
    assert "\x1b" not in done.stdout
    page = (folder / "picture.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '<meta name="color-scheme" content="light dark">' in page
    assert page.count("<span ") == 4


def test_on_a_terminal_words_are_coloured(bertworks: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    done = bertworks("explain", "liked", "The film was good")
    assert done.returncode == 0
    assert "\x1b[1;37;44m" in done.stdout or "\x1b[1;30;43m" in done.stdout
    assert "[+++]" not in done.stdout


def test_what_the_model_cannot_read_or_say_is_refused_in_one_sentence(bertworks: Run):
    done = bertworks("explain", "endings", "The film was", "good")
    assert done.returncode == 2
    assert done.stderr.startswith("bertworks: a model for 'choose' reads a prompt and its endings; 2 texts were given")
    done = bertworks("explain", "liked", "The film was", "--target", "maybe")
    assert done.returncode == 2
    assert done.stderr == "bertworks: there is no class 'maybe' to explain; choose one of: no, yes\n"
