"""`bertworks plan` as a person meets it: tables, JSON, a recipe on disk, one sentence for every mistake."""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bertworks.cli import main
from bertworks.cli import plan as plan_cli
from bertworks.commands.plan.benchmark import StepTiming, Trial
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.settings import read_recipe
from bertworks.text.sources import TextSource

WORDS = "river stone cloud garden window letter winter bread silver morning".split()
Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: object
    stdout: str
    stderr: str


class FakeStopwatch:
    """Every row of tiny takes a hundredth of a second, and one of a larger model in proportion to its width."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def product_rate(self) -> float:
        return 1e12

    def speed(self, trial: Trial, corpus: Corpus | None) -> StepTiming:
        rows, width = trial.recipe.batch_size, trial.recipe.model.config(trial.vocab_size).hidden_size
        return StepTiming(trial.max_length, rows, float(trial.max_length), rows * 0.01 * width / 128, 0.0, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared corpus."""
    folder = tmp_path_factory.mktemp("plan")
    draw = random.Random(1)
    documents = ["\n".join("The " + " ".join(draw.choices(WORDS, k=6)) + "." for _ in range(6)) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    prepare(PrepareRequest((TextSource(str(folder / "text.txt")),), folder / "vocab.txt", folder / "corpus"), 1)
    return folder


@pytest.fixture
def bertworks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, on a machine whose speed is known."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(plan_cli, "DeviceBenchmark", FakeStopwatch)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bertworks", *arguments, "--device", "cpu"])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


def test_a_plan_prints_the_candidates_the_recipe_and_the_command(bertworks: Run, folder: Path):
    done = bertworks("plan", "--data", "corpus", "--budget", "2h", "--out", "a.toml")
    assert done.returncode == 0
    for size in ("tiny", "mini", "small", "medium", "base"):
        assert any(line.split()[:1] == [size] for line in done.stdout.splitlines())
    assert done.stdout.count("←") == 1
    assert "is guessing" in done.stdout
    assert 'budget = "2h"' in done.stdout
    assert done.stdout.endswith("bertworks pretrain a.toml --data corpus --out run\n")
    assert "measuring tiny at length 128" in done.stderr
    assert read_recipe(folder / "a.toml", PretrainRecipe).budget == "2h"


def test_a_plan_as_json_is_one_line_and_the_recipe_is_written_all_the_same(bertworks: Run, folder: Path):
    done = bertworks("plan", "--data", "corpus", "--budget", "2h", "--out", "b.toml", "--json")
    told = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    recipe = read_recipe(folder / "b.toml", PretrainRecipe)
    assert (told["recipe"]["model"]["size"], told["recipe"]["batch"]) == (recipe.model.size, recipe.batch_size)
    assert told["loss"].keys() == {"low", "middle", "high"}
    assert len(told["candidates"]) == 5
    assert told["written"] == "b.toml"


def test_a_file_that_is_there_is_replaced_only_by_force(bertworks: Run, folder: Path):
    (folder / "plan.toml").write_text("mine\n")
    done = bertworks("plan", "--data", "corpus", "--budget", "2h")
    assert done.returncode == 2
    assert "plan.toml exists; choose another file with --out, or replace it with --force" in done.stderr
    assert (folder / "plan.toml").read_text() == "mine\n"
    assert bertworks("plan", "--data", "corpus", "--budget", "2h", "--force").returncode == 0
    assert read_recipe(folder / "plan.toml", PretrainRecipe).budget == "2h"


def test_what_a_recipe_takes_is_told_here_and_elsewhere(bertworks: Run):
    done = bertworks("plan", "--recipe", "paper-base")
    assert done.returncode == 0
    # 256 rows of width 768 take 15.36 s, whatever their length: a million steps are 177.8 days.
    assert any(line.split()[:3] == ["here", "177.8", "days"] for line in done.stdout.splitlines())
    for name in ("16xTPUv2", "64xTPUv2", "1xA100", "8xA100"):
        assert any(line.split()[:1] == [name] for line in done.stdout.splitlines())
    assert "the paper: 4 days on 16 TPU chips" in done.stdout


@pytest.mark.parametrize(
    ("steps", "told"), [(9_000_000, "1,600.0 days"), (100_000, "17.8 days"), (1000, "4.3 hours"), (100, "25.6 minutes")]
)
def test_a_time_is_told_in_the_unit_that_suits_it(bertworks: Run, folder: Path, steps: int, told: str):
    recipe = 'batch = 256\nwarmup = 1\n[model]\nsize = "base"\n[[phases]]\nlength = 128\n'
    (folder / "own.toml").write_text(f"{recipe}steps = {steps}\n")
    assert f" {told} " in bertworks("plan", "--recipe", "own.toml").stdout


def test_an_estimate_as_json_tells_its_formulas(bertworks: Run):
    done = bertworks(
        "plan", "--recipe", "paper-base", "--flops", "1e14", "--devices", "10", "--utilisation", "0.5", "--json"
    )
    told = json.loads(done.stdout)
    assert told["hardware"][0]["days"] == pytest.approx(told["flops"] / 5e14 / 86_400)
    assert told["formulas"]["days_on_hardware"] == "flops / (devices * peak * utilisation) / 86400"
    assert told["steps"] == 1_000_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "corpus"], "give --budget"),
        (["--data", "corpus", "--budget", "2h", "--recipe", "mini"], "not both"),
        (["--budget", "2h"], "needs a corpus"),
        (["--budget", "2h", "--data", "nowhere"], "a prepared corpus"),
        (["--budget", "1s", "--data", "corpus"], "1s is too short here"),
        (["--budget", "soon", "--data", "corpus"], "'soon' is no time"),
        (["--budget", "2h", "--data", "corpus", "--hardware", "8xA100"], "go with --recipe"),
        (["--budget", "2h", "--data", "corpus", "--out", "."], "is a folder"),
        (["--budget", "2h", "--data", "corpus", "--vocab", "ffff"], "no pieces of vocabulary ffff"),
        (["--recipe", "minni"], "there is no recipe 'minni'"),
        (["--recipe", "mini", "--hardware", "8xB9000"], "there is no hardware '8xB9000'"),
        (["--recipe", "mini", "--out", "x.toml"], "--out goes with --budget"),
        (["--recipe", "mini", "--flops", "0"], "write it as 312e12"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(bertworks: Run, folder: Path, arguments: list[str], said: str):
    (folder / "plan.toml").unlink(missing_ok=True)
    done = bertworks("plan", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.splitlines()[-1].startswith("bertworks: ")
    assert "Traceback" not in done.stderr
    assert not (folder / "plan.toml").exists()


def test_a_recipe_on_many_machines_is_a_table_with_its_formulas(bertworks: Run):
    done = bertworks("plan", "--nodes", "1", "--nodes", "8", "--gpus", "8", "--gpu", "h100", "--network", "400")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == ["1 x 8 H100", "8 x 8 H100"]
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:4]] for cells in (line.split("|") for line in lines[2:30])
    }
    assert rows["cards"] == ["8", "64"]
    assert rows["parameters"] == ["110,106,428"] * 2
    assert rows["checkpoint"] == ["1.32 GB"] * 2
    assert rows["bytes sent by a card, length 128"] == ["0.77 GB", "0.87 GB"]
    assert "- hours = sum over lengths of steps * seconds / 3600" in lines


def test_the_same_as_json_with_the_vocabulary_of_a_corpus(bertworks: Run):
    done = bertworks("plan", "--recipe", "tiny", "--nodes", "2", "--gpus", "1", "--data", "corpus", "--shard", "--json")
    told = json.loads(done.stdout)
    assert told["scales"][0]["num_cards"] == 2
    assert told["scales"][0]["parameters"] < 1_000_000
    assert {phase["length"] for phase in told["scales"][0]["phases"]} == {128, 512}
    assert "interval" in told["formulas"]


def test_machines_do_not_go_with_a_budget(bertworks: Run):
    done = bertworks("plan", "--nodes", "2", "--budget", "2h")
    assert done.returncode == 2
    assert "--nodes goes with --recipe" in done.stderr
