"""`bertworks compare`: its help, overrides of recipe keys, and user errors in one sentence."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertworks.choices import COMPARE_RECIPES
from bertworks.cli.compare import app
from bertworks.errors import SettingsError


def test_the_help_lists_all_built_in_recipes():
    printed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    for name in COMPARE_RECIPES:
        assert f"\n    {name} " in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["family"], "name the corpus folder with --data"),
        (["familly"], "there is no recipe 'familly'; name a .toml file or one of: ablations"),
        (["family", "--set", "finetune.epoch=2"], "finetune.epochs"),
        (["family", "--set", "batch_size=2"], "pretrain.batch_size"),
        (["family", "--only", "brt"], "there is no member 'brt'"),
    ],
)
def test_a_user_error_is_one_sentence_and_nothing_is_written(tmp_path: Path, arguments: list[str], message: str):
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "run")])
    assert isinstance(result.exception, SettingsError)
    assert message in str(result.exception)
    assert not (tmp_path / "run").exists()
