"""The journey of a labelled file on the command line: finetune, evaluate, predict; wrong words are refused."""

import json
import random
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bertworks.cli.app import app
from bertworks.encoders.bert import Bert, BertSizes, config_of, names_of
from bertworks.errors import BertworksError
from bertworks.models.folder import write_folder
from bertworks.models.names import to_theirs
from bertworks.vocabulary.kinds import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

WORDS = "win a prize now call me later at home tonight".split()

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little model, and messages that are spam when they have the word prize."""
    folder = tmp_path_factory.mktemp("journey")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = Tokenizer.of(wordpiece_backend(pieces, cased=False))
    sizes = BertSizes(len(pieces), 32, 1, 2, 64, 32, spread=0.15)
    encoder = Bert(sizes, torch.Generator().manual_seed(0))
    tensors = to_theirs(encoder.state_dict(), names_of(sizes))
    write_folder(folder / "base", config_of(sizes, ["BertModel"]), tensors, tokenizer, {})
    draw = random.Random(0)
    for name, count in (("train", 128), ("dev", 32)):
        texts = [" ".join(draw.choices(WORDS, k=5)) for _ in range(count)]
        rows = [f"{'spam' if 'prize' in text else 'ham'}\t{text}" for text in texts]
        (folder / f"{name}.tsv").write_text("\n".join(["Label\tSMS", *rows]) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text("batch = 8\nrate = 5e-3\nepochs = 8\ndropout = 0.0\n")
    return folder


def run(folder: Path, *words: str, text: str | None = None):
    return CliRunner().invoke(app, [word.replace("@", f"{folder}/") for word in words], input=text)


def test_from_a_labelled_file_to_predictions(folder: Path):
    files = ["--train", "@train.tsv", "--dev", "@dev.tsv"]
    done = run(folder, "finetune", "classify", "--model", "@base", *files, "--recipe", "@recipe.toml", "--out", "@run")
    assert done.exit_code == 0, done.output
    assert "dev, step 128: accuracy 1.0000" in done.output
    assert "fits: accuracy is 1.000" in done.output
    done = run(folder, "evaluate", "@run/model", "@dev.tsv", "--json")
    assert json.loads(done.output)["accuracy"] == 1.0
    done = run(folder, "predict", "@run/model", text="win a prize now\ncall me at home\n")
    assert [json.loads(line)["label"] for line in done.output.splitlines()] == ["spam", "ham"]


def test_seeds_are_told_as_mean_and_deviation(folder: Path):
    files = ["--train", "@train.tsv", "--dev", "@dev.tsv", "--recipe", "@recipe.toml", "--epochs", "1"]
    done = run(folder, "finetune", "classify", "--model", "@base", *files, "--out", "@seeds", "--seeds", "2")
    assert done.exit_code == 0, done.output
    assert "deviation" in done.output
    assert f"best: {folder}/seeds/batch8-rate0.005-epochs1-seed" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("finetune", "clasify", "--train", "@train.tsv"), "there is no task or set 'clasify'"),
        (("finetune", "classify", "--train", "@no.tsv"), "is not there; name a labelled file"),
        (("finetune", "classify", "--train", "@train.tsv", "--text", "body"), "no column 'body'"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(folder: Path, words: tuple[str, ...], message: str):
    done = run(folder, *words, "--model", "@base", "--out", "@wrong")
    assert isinstance(done.exception, BertworksError)
    assert message in str(done.exception)
