"""Engines by name, optional dependencies and int8 support of processors; refusals name the remedy."""

import json
from pathlib import Path

import pytest

from bertworks.engines import processor
from bertworks.engines.optional import import_optional
from bertworks.engines.processor import check_processor, has_exact_int8_matmul
from bertworks.engines.runtimes import choose_engine, find_export_engine
from bertworks.errors import FolderError, MissingDependencyError, SettingsError


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(MissingDependencyError) as caught:
        import_optional("no_such_runtime.sub", "onnx", "running a model")
    assert str(caught.value) == (
        "running a model needs the package 'no_such_runtime'; install it with: pip install 'bertworks[onnx]'"
    )


def test_a_missing_dependency_of_an_installed_package_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "half_installed.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        import_optional("half_installed", "onnx", "running a model")


def test_weights_take_precedence_over_a_graph(tmp_path: Path):
    assert find_export_engine(tmp_path) is None
    (tmp_path / "openvino_model.xml").touch()
    assert find_export_engine(tmp_path) == "openvino"
    (tmp_path / "model.onnx").touch()
    assert find_export_engine(tmp_path) == "onnx"
    (tmp_path / "model.safetensors").touch()
    assert find_export_engine(tmp_path) is None


def test_a_model_folder_runs_in_any_engine_and_an_exported_one_in_its_own(tmp_path: Path):
    assert choose_engine(tmp_path, None) == ("torch", False)
    assert choose_engine(tmp_path, "openvino") == ("openvino", False)
    (tmp_path / "model.onnx").touch()
    assert choose_engine(tmp_path, None) == ("onnx", True)
    assert choose_engine(tmp_path, "onnx") == ("onnx", True)
    with pytest.raises(SettingsError, match="was exported for 'onnx' and cannot run in 'openvino'"):
        choose_engine(tmp_path, "openvino")
    with pytest.raises(SettingsError, match="there is no engine 'jax'; choose one of: torch, onnx, openvino"):
        choose_engine(tmp_path, "jax")


@pytest.mark.parametrize(
    ("machine", "flags", "exact"),
    [
        ("x86_64", "fpu sse2 avx2 avx512f avx512_vnni", True),
        ("AMD64", "fpu avx2 avx_vnni", True),
        ("x86_64", "fpu sse2 avx2 avx512f", False),
        ("aarch64", "fp asimd", True),
    ],
)
def test_int8_matmuls_are_exact_with_vnni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, exact: bool
):
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    assert has_exact_int8_matmul() is exact


def test_8_bit_weights_are_refused_where_they_would_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processor, "has_exact_int8_matmul", lambda: False)
    check_processor(tmp_path)
    for bits in (7, None):
        (tmp_path / "certificate.json").write_text(json.dumps({"scheme": {"weight_bits": bits}}))
        check_processor(tmp_path)
    (tmp_path / "certificate.json").write_text(json.dumps({"scheme": {"weight_bits": 8}}))
    with pytest.raises(FolderError, match="8-bit weights for a processor with VNNI, which this one lacks"):
        check_processor(tmp_path)
