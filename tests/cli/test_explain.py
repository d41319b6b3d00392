"""`bertworks explain`: marks, JSON and an HTML page for every task, and user errors."""

import json
from pathlib import Path

import pytest
import torch
from command_line import RunCommand

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

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the film was good bad john lives in paris who".split()]
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    initializer_range=0.3,
)
TASKS: dict[str, Task] = {
    "liked": Classify(labels=("no", "yes")),
    "alike": Regress(),
    "endings": Choose(),
    "names": Tag(labels=("O", "B-PER", "I-PER")),
    "answers": Answer(),
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model for each task, all of random weights."""
    folder = tmp_path_factory.mktemp("explain")
    for name, task in TASKS.items():
        generator = torch.Generator().manual_seed(0)
        tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
        module = TaskModule(Bert(CONFIG, generator), task, generator)
        save_finetuned(folder / name, Predictor(module, tokenizer, WindowRule(32, 8)), {})
    return folder


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand) -> RunCommand:
    monkeypatch.chdir(folder)

    return run_command


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
def test_every_kind_of_model_is_explained(bertworks: RunCommand, model: str, texts: list[str], target: str):
    option = {"'yes'": "yes", "ending 2": "2", "'Paris' as B-PER": "Paris=B-PER"}.get(target, target)
    result = bertworks("explain", model, *texts, "--target", option, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    explanation = json.loads(result.stdout)
    assert explanation["target"].startswith(target)
    assert [text["text"] for text in explanation["texts"]] == texts
    total = sum(word["weight"] for text in explanation["texts"] for word in text["words"])
    assert total == pytest.approx(
        explanation["output"] - explanation["baseline_output"] + explanation["convergence_delta"]
    )
    magnitude = sum(abs(token["weight"]) for text in explanation["texts"] for token in text["tokens"])
    assert abs(explanation["convergence_delta"]) <= 0.01 * magnitude


def test_off_a_terminal_words_have_marks_and_a_page_is_written(bertworks: RunCommand, folder: Path):
    result = bertworks("explain", "liked", "The film was good", "--html", "picture.html")
    assert result.returncode == 0
    headline, text = result.stdout.splitlines()
    assert headline.endswith("with every word masked")
    assert "[+++]" in text or "[---]" in text
    assert "\x1b" not in result.stdout
    page = (folder / "picture.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '<meta name="color-scheme" content="light dark">' in page
    assert page.count("<span ") == 4


def test_on_a_terminal_words_are_coloured(bertworks: RunCommand, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    result = bertworks("explain", "liked", "The film was good")
    assert result.returncode == 0
    assert "\x1b[1;37;44m" in result.stdout or "\x1b[1;30;43m" in result.stdout
    assert "[+++]" not in result.stdout


def test_what_the_model_cannot_read_or_say_is_refused_in_one_sentence(bertworks: RunCommand):
    result = bertworks("explain", "endings", "The film was", "good")
    assert result.returncode == 2
    assert result.stderr.startswith("bertworks: got 2 texts; the task 'choose' takes")
    result = bertworks("explain", "liked", "The film was", "--target", "maybe")
    assert result.returncode == 2
    assert result.stderr == "bertworks: there is no class 'maybe' to explain; choose one of: no, yes\n"
