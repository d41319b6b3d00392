"""What a person asks to export in, a folder with a certificate out; where it would lose too much, a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.datasets.texts import texts_in
from bertworks.disk import sha256, write_json
from bertworks.encoders.families import architecture_of, family_of
from bertworks.engines.processor import CERTIFICATE
from bertworks.engines.runtimes import exported_for
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.exporters.certificate import Certificate, Change, Tolerance
from bertworks.exporters.folder import appearing, copy_settings, size_of
from bertworks.exporters.half import write_half
from bertworks.exporters.int8 import write_int8
from bertworks.exporters.onnx import write_onnx
from bertworks.exporters.openvino import write_openvino
from bertworks.exporters.parity import Sample, builtin_sample, compare, sample_of_cases, sample_of_texts
from bertworks.inference.model import Model, load
from bertworks.models.folder import versions
from bertworks.models.hub import fetch
from bertworks.models.weights import find_weights
from bertworks.tasks.contract import Scored

# Writes the weights of a model into a folder, given rows and a tolerance to look for; returns what it chose.
Write = Callable[[Model, Path, Sample, Tolerance], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of export: what writes it, and what it may lose."""

    write: Write
    tolerance: Tolerance


def _int8(model: Model, folder: Path, sample: Sample, tolerance: Tolerance) -> dict[str, Any]:
    assert tolerance.cosine is not None
    return write_int8(model, folder, sample, tolerance.cosine)


TARGETS = {
    "onnx": Target(lambda model, folder, sample, tolerance: write_onnx(model, folder), Tolerance(1e-4)),
    "openvino": Target(lambda model, folder, sample, tolerance: write_openvino(model, folder), Tolerance(1e-4)),
    "safetensors-fp16": Target(lambda model, folder, sample, tolerance: write_half(model, folder), Tolerance(1e-2)),
    "int8": Target(_int8, Tolerance(cosine=0.996)),
}


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export, to which of `TARGETS`, and where to. `data` is a labelled file of the model's task, or texts."""

    model: str
    to: str
    out: Path
    data: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    difference: float | None = None
    cosine: float | None = None
    points: float | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What was made: the folder, what certificate.json says, and the bytes of the folder before and after."""

    out: Path
    certificate: dict[str, Any]
    bytes_before: int
    bytes_after: int


def export(request: ExportRequest) -> Exported:
    """Write a model for another engine, or with smaller numbers, and prove what it lost; nothing is left if refused."""
    if request.to not in TARGETS:
        raise SettingsError(f"there is no export to '{request.to}'; choose one of: {', '.join(TARGETS)}")
    target = TARGETS[request.to]
    tolerance = target.tolerance.changed(request.difference, request.cosine, request.points)
    folder = fetch(request.model)
    if exported_for(folder) is not None:
        raise FolderError(f"{folder} is an export itself; give the folder that it was made from")
    original = load(folder)
    with appearing(request.out) as staged:
        sample = _sample(original, request)
        before = _scored(original, request)
        copy_settings(folder, staged, _config(original), original.tokenizer)
        scheme = target.write(original, staged, sample, tolerance)
        exported = load(staged)
        after = _scored(exported, request)
        change = None
        if before is not None and after is not None:
            assert request.data is not None
            change = Change(request.data.name, before, after)
        compared = compare(original, exported, sample)
        certificate = Certificate(request.to, sample.told, compared, tolerance, scheme, change)
        certificate.check(request.model)
        told = certificate.as_json() | {"original": _origin(folder), "versions": versions()}
        write_json(staged / CERTIFICATE, told)
        sizes = size_of(folder), size_of(staged)
    return Exported(request.out, told, *sizes)


def _sample(model: Model, request: ExportRequest) -> Sample:
    if request.data is None:
        return builtin_sample(model)
    if not request.data.is_file():
        raise InputError(f"{request.data} is not a file; give a labelled file of the model's task, or texts")
    if model.predictor is None:
        texts = texts_in(str(request.data), request.columns.get("text"))
        sample = sample_of_texts(model, texts, request.data.name)
    else:
        sample = sample_of_cases(model, _cases(model, request), request.data.name)
    if not sample.rows:
        raise InputError(f"{request.data} holds nothing to compare on; give a file with at least one text")
    return sample


def _cases(model: Model, request: ExportRequest) -> Iterator[Any]:
    assert model.predictor is not None
    assert request.data is not None
    return model.predictor.module.task.read(request.data, request.columns)


def _scored(model: Model, request: ExportRequest) -> Scored | None:
    """Return the scores of a fine-tuned model on the person's file, if there is one."""
    if model.predictor is None or request.data is None:
        return None
    return model.predictor.module.task.score(model.predictor.predict(_cases(model, request)))


def _config(model: Model) -> dict[str, Any]:
    """Return the config.json of a model that came without one of today's kind."""
    sizes = model.encoder.sizes
    return family_of(sizes.family).config_of(sizes, [architecture_of(sizes, "masked" if model.masked else "")])


def _origin(folder: Path) -> dict[str, str]:
    """Return the name of the original and the hash of its weights, as far as they are one file."""
    weights = find_weights(folder)
    return {"folder": folder.resolve().name} | ({"sha256": sha256(weights)} if weights is not None else {})
