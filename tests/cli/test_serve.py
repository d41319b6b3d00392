"""`bertworks serve` and `bertworks bundle`: user errors in one sentence, and what is printed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bertworks.cli import bundle, serve
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError


def error_of(app, *arguments: object) -> BertworksError:
    error = CliRunner().invoke(app, list(map(str, arguments))).exception
    assert isinstance(error, BertworksError), error
    return error


def test_a_server_that_others_can_reach_is_refused_without_keys(folders):
    error = error_of(serve.app, f"one={folders['tag']}", "--host", "0.0.0.0", "--port", 0)
    assert isinstance(error, SettingsError)
    assert "--api-key-file" in str(error)


def test_folders_without_models_and_runs_that_are_not_there_are_error_of(tmp_path, folders):
    (tmp_path / "empty").mkdir()
    assert isinstance(error_of(serve.app, f"one={tmp_path / 'empty'}", "--port", 0), FolderError)
    error = error_of(serve.app, f"one={folders['tag']}", "--runs", f"x={tmp_path / 'none'}", "--port", 0)
    assert isinstance(error, InputError)


def test_tls_and_trace_options_that_cannot_be_used_are_refused_before_models_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert "needs --tls-key" in str(error_of(serve.app, "one=none", "--tls-cert", "cert.pem", "--port", 0))
    files = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    assert "cert.pem cannot be read" in str(error_of(serve.app, "one=none", *files, "--port", 0))
    error = error_of(serve.app, "one=none", "--otel-endpoint", "http://127.0.0.1:4318", "--port", 0)
    assert "pip install 'bertworks[otel]'" in str(error)


@pytest.mark.parametrize(
    "option", [("--rate-limit", "0"), ("--max-connections-per-address", "0"), ("--log-format", "xml")]
)
def test_limits_and_formats_that_do_not_exist_are_usage_errors(option):
    assert CliRunner().invoke(serve.app, ["one=none", *option]).exit_code == 2


def test_a_damaged_bundle_is_not_served(tmp_path, folders):
    assert CliRunner().invoke(bundle.app, [str(folders["tag"]), "--output", str(tmp_path / "out")]).exit_code == 0
    (tmp_path / "out" / "models" / "tag" / "vocab.txt").write_text("changed")
    error = error_of(serve.app, tmp_path / "out", "--port", 0)
    assert "models/tag/vocab.txt" in str(error)


def test_bundle_prints_where_each_model_comes_from(tmp_path, folders):
    arguments = [str(folders["classify"]), "--base", str(folders["pretrained"]), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(bundle.app, arguments)
    assert result.exit_code == 0, result.exception
    assert "classify, pretrained" in result.output
    assert "classify comes from pretrained (as given; its folder records no hash)" in result.output


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client", "orjson", "httptools"])
def test_a_missing_dependency_is_named_with_its_extra(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['bertworks', 'serve', 'x']; "
        "from bertworks.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert "pip install 'bertworks[serve]'" in result.stderr
    assert "Traceback" not in result.stderr
