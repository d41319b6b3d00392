"""From a labelled file to predictions on the command line: finetune, evaluate, predict, and user errors."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
from encoder_folder import write_random_bert
from typer.testing import CliRunner

from bertworks.cli.app import app
from bertworks.encoders.bert import BertConfig
from bertworks.errors import BertworksError, MissingDependencyError
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

WORDS = "win a prize now call me later at home tonight".split()

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little model, and messages that are spam when they have the word prize."""
    folder = tmp_path_factory.mktemp("journey")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = Tokenizer.from_backend(wordpiece_backend(tokens, cased=False))
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.15,
    )
    write_random_bert(folder / "base", config, tokenizer)
    draw = random.Random(0)
    for name, count in (("train", 128), ("dev", 32)):
        texts = [" ".join(draw.choices(WORDS, k=5)) for _ in range(count)]
        rows = [f"{'spam' if 'prize' in text else 'ham'}\t{text}" for text in texts]
        (folder / f"{name}.tsv").write_text("\n".join(["Label\tSMS", *rows]) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text("batch_size = 8\nlearning_rate = 5e-3\nepochs = 8\ndropout = 0.0\n")
    return folder


def run(folder: Path, *words: str, text: str | None = None):
    return CliRunner().invoke(app, [word.replace("@", f"{folder}/") for word in words], input=text)


def test_from_a_labelled_file_to_predictions(folder: Path):
    files = ["--train", "@train.tsv", "--dev", "@dev.tsv"]
    result = run(
        folder, "finetune", "classify", "--model", "@base", *files, "--recipe", "@recipe.toml", "--output", "@run"
    )
    assert result.exit_code == 0, result.output
    assert "dev, step 128: accuracy 1.0000" in result.output
    assert "fits: accuracy is 1.000" in result.output
    result = run(folder, "evaluate", "@run/model", "@dev.tsv", "--json")
    assert json.loads(result.stdout)["accuracy"] == 1.0
    assert result.stderr == f"evaluate {folder}/dev.tsv: 32 of 32 examples\n"
    result = run(folder, "evaluate", "@run/model", "@dev.tsv", "@train.tsv", "--json")
    assert list(json.loads(result.stdout)) == [f"{folder}/dev.tsv", f"{folder}/train.tsv"]
    result = run(folder, "predict", "@run/model", text="win a prize now\ncall me at home\n")
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == ["spam", "ham"]
    (folder / "texts.txt").write_text("win a prize now\ncall me at home\n")
    result = run(folder, "predict", "@run/model", "@texts.txt")
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == ["spam", "ham"]
    assert result.stderr == "predict: 2 of 2 texts\n"


def test_seeds_are_reported_as_mean_and_deviation(folder: Path):
    files = ["--train", "@train.tsv", "--dev", "@dev.tsv", "--recipe", "@recipe.toml", "--epochs", "1"]
    result = run(folder, "finetune", "classify", "--model", "@base", *files, "--output", "@seeds", "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "std" in result.output
    assert f"best: {folder}/seeds/bs8-lr0.005-epochs1-seed" in result.output


@pytest.fixture(scope="module")
def mnli(folder: Path) -> Path:
    """A little MNLI: what the second sentence is to the first is its first word."""
    own = folder / "glue" / "MNLI"
    own.mkdir(parents=True)
    labels = {"prize": "entailment", "home": "neutral", "later": "contradiction"}
    draw = random.Random(1)

    def rows(count: int, is_labelled: bool) -> list[str]:
        lines = ["index\tsentence1\tsentence2" + "\tgold_label" * is_labelled]
        for number in range(count):
            word = draw.choice(list(labels))
            lines.append(f"{number}\twin {draw.choice(WORDS)}\t{word} now" + f"\t{labels[word]}" * is_labelled)
        return lines

    for name, count, is_labelled in (
        ("train", 96, True),
        ("dev_matched", 24, True),
        ("dev_mismatched", 18, True),
        ("test_matched", 7, False),
        ("test_mismatched", 5, False),
        ("diagnostic", 4, False),
    ):
        (own / f"{name}.tsv").write_text("\n".join(rows(count, is_labelled)) + "\n")
    return folder


def lines_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_mnli_is_scored_on_both_dev_sets_and_its_submission_is_written(mnli: Path):
    words = [
        "finetune",
        "glue/mnli",
        "--data",
        "@",
        "--model",
        "@base",
        "--recipe",
        "@recipe.toml",
        "--output",
        "@mnli",
    ]
    result = run(mnli, *words, "--test", "--epochs", "4")
    assert result.exit_code == 0, result.output
    assert ["dev_matched", "dev_mismatched"] in [line.split() for line in result.stdout.splitlines()]
    printed = [line for line in result.stdout.splitlines() if line.startswith("submission: ")]
    counts = {"MNLI-m.tsv": 7, "MNLI-mm.tsv": 5, "AX.tsv": 4}
    assert printed == [f"submission: {mnli}/mnli/{name}, {count} predictions" for name, count in counts.items()]
    for name, count in counts.items():
        header, *rows = lines_of(mnli / "mnli" / name)
        assert header == ["index", "prediction"]
        assert [row[0] for row in rows] == [str(number) for number in range(count)]
        assert {row[1] for row in rows} <= {"entailment", "neutral", "contradiction"}
    scores = json.loads((mnli / "mnli" / "run.json").read_text())["scores"]
    result = run(mnli, "evaluate", "@mnli/model", "glue/MNLI", "--data", "@", "--json")
    found = json.loads(result.stdout)
    assert found == {"dev_matched": scores["dev"], "dev_mismatched": scores["dev_mismatched"]}
    assert found["dev_matched"]["accuracy"] > 0.9


def test_the_submission_is_that_of_the_best_seed(mnli: Path):
    words = ["finetune", "glue/MNLI", "--data", "@glue", "--model", "@base", "--recipe", "@recipe.toml"]
    result = run(mnli, *words, "--output", "@twice", "--epochs", "1", "--seeds", "2", "--test")
    assert result.exit_code == 0, result.output
    best = Path(next(line for line in result.stdout.splitlines() if line.startswith("best: "))[6:])
    assert [len(lines_of(mnli / "twice" / name)) for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv")] == [8, 6, 5]
    texts = [" ".join(row[1:]) for row in lines_of(mnli / "glue" / "MNLI" / "test_matched.tsv")[1:]]
    assert len(texts) == 7
    again = run(mnli, "predict", str(best / "model"), "@glue/MNLI/test_matched.tsv")
    labels = [json.loads(line)["label"] for line in again.stdout.splitlines()]
    assert labels == [row[1] for row in lines_of(mnli / "twice" / "MNLI-m.tsv")[1:]]


def test_a_set_without_a_test_file_is_refused_before_training(mnli: Path, tmp_path: Path):
    shutil.copytree(mnli / "glue", tmp_path / "glue")
    for path in (tmp_path / "glue" / "MNLI").glob("test_*.tsv"):
        path.unlink()
    words = ["finetune", "glue/MNLI", "--data", f"{tmp_path}", "--model", "@base", "--output", "@none", "--test"]
    result = run(mnli, *words)
    assert isinstance(result.exception, BertworksError)
    assert "has no test_matched file of glue/MNLI; put test_matched.tsv (or .gz) into" in str(result.exception)
    assert not (mnli / "none").exists()


def test_a_model_is_adapted_to_the_texts_first(folder: Path):
    words = ["finetune", "classify", "--model", "@base", "--train", "@train.tsv", "--dev", "@dev.tsv"]
    result = run(folder, *words, "--adapt-epochs", "13", "--epochs", "1", "--output", "@adapted")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any("objective mlm, 52 steps (13 epochs of 4), learning rate 0.0001" in line for line in lines)
    assert any(line.startswith("adapt: step 50 of 52: mlm ") for line in lines)
    assert any(line.startswith("adapted in ") and line.endswith("/adapted/adapt/model") for line in lines)
    recipe = (folder / "adapted" / "recipe.toml").read_text()
    assert "[adapt]\nepochs = 13\n" in recipe


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("finetune", "classify", "--train", "@train.tsv", "--test"),
            "--test without a file writes the submission of a published dataset",
        ),
        (("finetune", "clasify", "--train", "@train.tsv"), "there is no task or dataset 'clasify'"),
        (("finetune", "classify", "--train", "@no.tsv"), "does not exist; name a labelled file"),
        (("finetune", "classify", "--train", "@train.tsv", "--text", "body"), "no column 'body'"),
    ],
)
def test_a_user_error_is_one_sentence(folder: Path, words: tuple[str, ...], message: str):
    result = run(folder, *words, "--model", "@base", "--output", "@wrong")
    assert isinstance(result.exception, BertworksError)
    assert message in str(result.exception)


def test_a_tracker_is_chosen_by_name_and_checked_before_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["finetune", "classify", "--model", "@base", "--train", "@train.tsv", "--output", "@tracked"]
    result = run(folder, *words, "--track", "wandb", "--track", "wanbd")
    assert result.exit_code == 2
    assert "there is no tracker 'wanbd'; did you mean 'wandb'? choose one of: wandb, mlflow" in result.output
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    result = run(folder, *words, "--track", "mlflow")
    assert isinstance(result.exception, MissingDependencyError)
    assert not (folder / "tracked").exists()
    result = run(folder, *words, "--track", "mlflow", "--seeds", "2", "--ray", "local")
    assert "leave out --ray or --track" in str(result.exception)
