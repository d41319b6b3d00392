"""The verbs `serve` and `bundle`: what they refuse in one sentence, and what they tell."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bertworks.cli import bundle, serve
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError


def refused(app, *arguments: object) -> BertworksError:
    found = CliRunner().invoke(app, list(map(str, arguments))).exception
    assert isinstance(found, BertworksError), found
    return found


def test_a_server_that_others_can_reach_is_refused_without_keys(folders):
    found = refused(serve.app, f"one={folders['tag']}", "--host", "0.0.0.0", "--port", 0)
    assert isinstance(found, SettingsError)
    assert "--api-key-file" in str(found)


def test_folders_without_models_and_runs_that_are_not_there_are_refused(tmp_path, folders):
    (tmp_path / "empty").mkdir()
    assert isinstance(refused(serve.app, f"one={tmp_path / 'empty'}", "--port", 0), FolderError)
    found = refused(serve.app, f"one={folders['tag']}", "--runs", f"x={tmp_path / 'none'}", "--port", 0)
    assert isinstance(found, InputError)


def test_a_damaged_bundle_is_not_served(tmp_path, folders):
    assert CliRunner().invoke(bundle.app, [str(folders["tag"]), "--out", str(tmp_path / "out")]).exit_code == 0
    (tmp_path / "out" / "models" / "tag" / "vocab.txt").write_text("changed")
    found = refused(serve.app, tmp_path / "out", "--port", 0)
    assert "models/tag/vocab.txt" in str(found)


def test_bundling_tells_where_each_model_came_from(tmp_path, folders):
    arguments = [str(folders["classify"]), "--base", str(folders["pretrained"]), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(bundle.app, arguments)
    assert done.exit_code == 0, done.exception
    assert "classify, pretrained" in done.output
    assert "classify came from pretrained (as given; its folder records no hash)" in done.output


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client", "orjson", "httptools"])
def test_a_missing_part_is_told_with_the_command_that_brings_it(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['bertworks', 'serve', 'x']; "
        "from bertworks.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'bertworks[serve]'" in done.stderr
    assert "Traceback" not in done.stderr
