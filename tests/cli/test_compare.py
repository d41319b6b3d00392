"""`bertworks compare`: what is said on the command line, as tables of a recipe; its help; refusals in one sentence."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertworks.cli.compare import app, parse_overrides
from bertworks.commands.compare.recipe import BUILTIN_RECIPES
from bertworks.errors import SettingsError


def test_changes_are_read_as_toml_reads_them():
    told = ["model.size=tiny", "model.num_layers=3", "rate=1e-3", "phases=[{length=64, share=1.0}]", "truncate=true"]
    assert parse_overrides(told) == {
        "model": {"size": "tiny", "num_layers": 3},
        "rate": 1e-3,
        "phases": [{"length": 64, "share": 1.0}],
        "truncate": True,
    }
    for wrong in ("rate", "=3", "model.=3"):
        with pytest.raises(SettingsError, match="changes nothing; write it as model"):
            parse_overrides([wrong])


def test_the_help_names_all_that_are_built_in():
    printed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    for name in BUILTIN_RECIPES:
        assert f"\n    {name} " in printed


def test_a_comparison_without_a_corpus_says_what_to_name(tmp_path: Path):
    found = CliRunner().invoke(app, ["family", "--out", str(tmp_path / "out")])
    assert isinstance(found.exception, SettingsError)
    assert "name the corpus folder with --data" in str(found.exception)
    assert not (tmp_path / "out").exists()
    unknown = CliRunner().invoke(app, ["familly", "--out", str(tmp_path / "out")])
    assert "there is no recipe 'familly'; name a .toml file or one of: ablations" in str(unknown.exception)
