"""`bertworks plan`: tables, JSON, a recipe on disk, one sentence for every user error."""

import json
import random
from pathlib import Path

import pytest
import torch
from command_line import RunCommand

from bertworks.commands.plan.benchmark import StepTiming, Trial
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.settings import read_recipe
from bertworks.text.sources import TextSource

WORDS = "river stone cloud garden window letter winter bread silver morning".split()


class FakeBenchmark:
    """A sequence takes 0.01 s in a tiny model, and in a larger one in proportion to its hidden size."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def matmul_throughput(self) -> float:
        return 1e12

    def time_steps(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        batch_size, hidden_size = trial.recipe.batch_size, trial.recipe.model.config(trial.vocab_size).hidden_size
        return StepTiming(
            max_length=trial.max_length,
            num_sequences=batch_size,
            tokens_per_sequence=float(trial.max_length),
            forward_backward_seconds=batch_size * 0.01 * hidden_size / 128,
            optimizer_seconds=0.0,
            num_steps=3,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared corpus."""
    folder = tmp_path_factory.mktemp("plan")
    draw = random.Random(1)
    documents = ["\n".join("The " + " ".join(draw.choices(WORDS, k=6)) + "." for _ in range(6)) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    prepare(
        PrepareRequest(
            sources=(TextSource(str(folder / "text.txt")),), vocabulary=folder / "vocab.txt", output=folder / "corpus"
        ),
        1,
    )
    return folder


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, run_command: RunCommand) -> RunCommand:
    """Run the command line in this process, on a machine whose speed is known."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("bertworks.commands.plan.benchmark.DeviceBenchmark", FakeBenchmark)
    monkeypatch.setenv("COLUMNS", "200")

    return lambda *arguments: run_command(*arguments, "--device", "cpu")


def test_a_plan_prints_the_candidates_the_recipe_and_the_command(bertworks: RunCommand, folder: Path):
    result = bertworks("plan", "--data", "corpus", "--budget", "2h", "--output", "a.toml")
    assert result.returncode == 0
    for size in ("tiny", "mini", "small", "medium", "base"):
        assert any(line.split()[:1] == [size] for line in result.stdout.splitlines())
    assert result.stdout.count("←") == 1
    assert "unigram entropy" in result.stdout
    assert 'budget = "2h"' in result.stdout
    assert result.stdout.endswith("bertworks pretrain a.toml --data corpus --output run\n")
    assert "timing tiny at max_length 128" in result.stderr
    assert read_recipe(folder / "a.toml", PretrainRecipe).budget == "2h"


def test_a_plan_as_json_is_one_line_and_the_recipe_is_written_all_the_same(bertworks: RunCommand, folder: Path):
    result = bertworks("plan", "--data", "corpus", "--budget", "2h", "--output", "b.toml", "--json")
    values = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    recipe = read_recipe(folder / "b.toml", PretrainRecipe)
    assert (values["recipe"]["model"]["size"], values["recipe"]["batch_size"]) == (recipe.model.size, recipe.batch_size)
    assert values["loss"].keys() == {"low", "middle", "high"}
    assert len(values["candidates"]) == 5
    assert values["written"] == "b.toml"


def test_a_file_that_is_there_is_replaced_only_by_force(bertworks: RunCommand, folder: Path):
    (folder / "plan.toml").write_text("mine\n")
    result = bertworks("plan", "--data", "corpus", "--budget", "2h")
    assert result.returncode == 2
    assert "plan.toml exists; choose another file with --output, or replace it with --force" in result.stderr
    assert (folder / "plan.toml").read_text() == "mine\n"
    assert bertworks("plan", "--data", "corpus", "--budget", "2h", "--force").returncode == 0
    assert read_recipe(folder / "plan.toml", PretrainRecipe).budget == "2h"


def test_what_a_recipe_takes_is_estimated_here_and_elsewhere(bertworks: RunCommand):
    result = bertworks("plan", "--recipe", "paper-base")
    assert result.returncode == 0
    # 256 rows of width 768 take 15.36 s, whatever their length: a million steps are 177.8 days.
    assert any(line.split()[:3] == ["here", "177.8", "days"] for line in result.stdout.splitlines())
    for name in ("16xTPUv2", "64xTPUv2", "1xA100", "8xA100"):
        assert any(line.split()[:1] == [name] for line in result.stdout.splitlines())
    assert "the paper: 4 days on 16 TPU chips" in result.stdout


@pytest.mark.parametrize(
    ("steps", "duration"),
    [(9_000_000, "1,600.0 days"), (100_000, "17.8 days"), (1000, "4.3 hours"), (100, "25.6 minutes")],
)
def test_a_time_is_estimated_in_the_unit_that_suits_it(bertworks: RunCommand, folder: Path, steps: int, duration: str):
    recipe = 'batch_size = 256\nwarmup_steps = 1\n[model]\nsize = "base"\n[[phases]]\nmax_length = 128\n'
    (folder / "own.toml").write_text(f"{recipe}steps = {steps}\n")
    assert f" {duration} " in bertworks("plan", "--recipe", "own.toml").stdout


def test_an_estimate_as_json_has_its_formulas(bertworks: RunCommand):
    result = bertworks(
        "plan", "--recipe", "paper-base", "--flops", "1e14", "--devices", "10", "--utilisation", "0.5", "--json"
    )
    values = json.loads(result.stdout)
    assert values["hardware"][0]["days"] == pytest.approx(values["flops"] / 5e14 / 86_400)
    assert values["formulas"]["days_on_hardware"] == "flops / (devices * peak * utilisation) / 86400"
    assert values["steps"] == 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "corpus"], "give --budget"),
        (["--data", "corpus", "--budget", "2h", "--recipe", "mini"], "not both"),
        (["--budget", "2h"], "needs a corpus"),
        (["--budget", "2h", "--data", "nowhere"], "a prepared corpus"),
        (["--budget", "1s", "--data", "corpus"], "1s is too short here"),
        (["--budget", "soon", "--data", "corpus"], "'soon' is no duration"),
        (["--budget", "2h", "--data", "corpus", "--hardware", "8xA100"], "need --recipe"),
        (["--budget", "2h", "--data", "corpus", "--output", "."], "is a folder"),
        (["--budget", "2h", "--data", "corpus", "--vocab", "ffff"], "vocabulary ffff"),
        (["--recipe", "minni"], "there is no recipe 'minni'"),
        (["--recipe", "mini", "--hardware", "8xB9000"], "there is no hardware '8xB9000'"),
        (["--recipe", "mini", "--output", "x.toml"], "--output needs --budget"),
        (["--recipe", "mini", "--flops", "0"], "give a positive number such as 312e12"),
    ],
)
def test_a_user_error_is_one_sentence_and_exit_code_2(
    bertworks: RunCommand, folder: Path, arguments: list[str], message: str
):
    (folder / "plan.toml").unlink(missing_ok=True)
    result = bertworks("plan", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("bertworks: ")
    assert "Traceback" not in result.stderr
    assert not (folder / "plan.toml").exists()


def test_a_recipe_on_many_nodes_is_a_table_with_its_formulas(bertworks: RunCommand):
    result = bertworks("plan", "--nodes", "1", "--nodes", "8", "--gpus", "8", "--gpu", "h100", "--network", "400")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == ["1 x 8 H100", "8 x 8 H100"]
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:4]] for cells in (line.split("|") for line in lines[2:30])
    }
    assert rows["GPUs"] == ["8", "64"]
    assert rows["parameters"] == ["110,106,428"] * 2
    assert rows["checkpoint size"] == ["1.32 GB"] * 2
    assert rows["bytes sent per GPU, length 128"] == ["0.77 GB", "0.87 GB"]
    assert any(line.startswith("- hours = ") for line in lines)


def test_the_same_as_json_with_the_vocabulary_of_a_corpus(bertworks: RunCommand):
    result = bertworks(
        "plan", "--recipe", "tiny", "--nodes", "2", "--gpus", "1", "--data", "corpus", "--shard", "--json"
    )
    values = json.loads(result.stdout)
    assert values["clusters"][0]["num_gpus"] == 2
    assert values["clusters"][0]["num_parameters"] < 1_000_000
    assert {phase["max_length"] for phase in values["clusters"][0]["phases"]} == {128, 512}
    assert "hours" in values["formulas"]


def test_nodes_do_not_combine_with_a_budget(bertworks: RunCommand):
    result = bertworks("plan", "--nodes", "2", "--budget", "2h")
    assert result.returncode == 2
    assert "--nodes combines with --recipe" in result.stderr
