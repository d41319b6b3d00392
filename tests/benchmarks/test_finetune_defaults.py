"""benchmarks/finetune_defaults.py: commands follow from what the defaults chose, and tables from finished runs."""

import sys
from pathlib import Path

import pytest

from bertworks.disk import write_json

with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    from finetune_defaults import DATASETS, VARIANTS, Paths, Run, all_runs, change_table, default_table

SETTINGS = {"learning_rate": 1.2e-4, "epochs": 5, "batch_size": 16}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "data", tmp_path / "out", {"mini": tmp_path / "mini"}, {"mrpc": DATASETS["en"]["mrpc"]})


def write_score(paths: Paths, variant: str, size: int, score: float, seed: int = 0) -> None:
    write_json(paths.result(Run("mini", "mrpc", size, variant, seed)), {"score": score, "recipe": SETTINGS})


def test_a_dataset_is_reduced_by_an_option_of_the_command(tmp_path):
    dataset = DATASETS["en"]["sst2"]
    assert dataset.command(tmp_path, 100)[-2:] == ["--set", "max_train_examples=100"]
    assert DATASETS["en"]["mrpc"].command(tmp_path, 0) == ["glue/MRPC", "--data", f"{tmp_path}/glue/MRPC"]


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("default", []),
        ("lr-third", ["--learning-rate", "4e-05"]),
        ("lr-3", ["--learning-rate", "0.00036"]),
        ("epochs-half", ["--epochs", "2"]),
        ("epochs-2", ["--epochs", "10"]),
        ("batch-2", ["--batch-size", "32"]),
    ],
)
def test_a_variant_changes_what_the_defaults_chose(variant, options):
    assert VARIANTS[variant].options(SETTINGS) == options


def test_runs_with_default_settings_come_first(paths):
    runs = list(all_runs(paths, ["lr-3", "default"], ["mrpc-400"], 2))
    assert [(run.variant, run.size, run.seed) for run in runs] == [
        ("default", 400, 0), ("default", 400, 1), ("lr-3", 400, 0), ("lr-3", 400, 1),
    ]  # fmt: skip
    assert runs[2].default == runs[0]


def test_the_tables_show_scores_and_mean_changes(paths):
    for size, default, changed in ((400, 0.80, 0.82), (0, 0.85, 0.84)):
        write_score(paths, "default", size, default - 0.01, seed=0)
        write_score(paths, "default", size, default + 0.01, seed=1)
        write_score(paths, "lr-3", size, changed)
    assert default_table(paths, 2)[2:] == ["| mrpc, 400 | 80.0 (0.00012, 5) |", "| mrpc, all | 85.0 (0.00012, 5) |"]
    changes = dict(line.strip("| ").split(" | ") for line in change_table(paths, 2)[2:])
    assert changes["three times the learning rate"] == "+0.5 (1 of 2)"  # (2 - 1) / 2 points
    assert changes["half the epochs"] == "–"
