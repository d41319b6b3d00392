"""Export: a request in, a folder with a certificate out, or a refusal if it exceeds the tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertworks.commands.evaluate import report_progress
from bertworks.datasets.texts import texts_in
from bertworks.disk import sha256, staged_folder, write_json
from bertworks.engines.processor import CERTIFICATE
from bertworks.engines.runtimes import find_export_engine
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.exporters.certificate import Certificate, MetricChange, Tolerance
from bertworks.exporters.folder import check_output, copy_settings, folder_size
from bertworks.exporters.half import write_half
from bertworks.exporters.int8 import write_int8
from bertworks.exporters.onnx import write_onnx
from bertworks.exporters.openvino import write_openvino
from bertworks.exporters.parity import ParitySample, builtin_sample, compare, sample_of_examples, sample_of_texts
from bertworks.folder_lock import lock_output
from bertworks.inference.graph_heads import graph_head
from bertworks.inference.model import LoadedModel, load
from bertworks.integrity.model_files import write_metadata
from bertworks.models.exported_folder import GRAPH
from bertworks.models.folder import read_folder, versions
from bertworks.models.graph_config import GraphConfig
from bertworks.models.hub import fetch
from bertworks.models.metadata import read_config
from bertworks.models.weight_files import find_weights
from bertworks.progress import Progress, ProgressCallback, begin_stage, ignore_progress
from bertworks.reading import convert_paths
from bertworks.tasks.contract import TaskScores, examples_in
from bertworks.vocabulary.special_tokens import PLAIN

# Writes the weights of a model into a folder, given sample sequences and a tolerance; returns the scheme it chose.
ExportWriter = Callable[[LoadedModel, Path, ParitySample, Tolerance], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """A target format: its writer and its default tolerance."""

    write: ExportWriter
    tolerance: Tolerance


def _write_int8(model: LoadedModel, folder: Path, sample: ParitySample, tolerance: Tolerance) -> dict[str, Any]:
    assert tolerance.cosine is not None
    return write_int8(model, folder, sample, tolerance.cosine)


TARGETS = {
    "onnx": ExportTarget(lambda model, folder, sample, tolerance: write_onnx(model, folder), Tolerance(1e-4)),
    "openvino": ExportTarget(lambda model, folder, sample, tolerance: write_openvino(model, folder), Tolerance(1e-4)),
    "safetensors-fp16": ExportTarget(
        lambda model, folder, sample, tolerance: write_half(model, folder), Tolerance(1e-2)
    ),
    "int8": ExportTarget(_write_int8, Tolerance(cosine=0.996)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export, to which of `TARGETS`, and where. `data` is a labelled file of the model's task, or texts."""

    model: str
    target: str
    output: Path
    data: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    difference: float | None = None
    cosine: float | None = None
    points: float | None = None

    def __post_init__(self) -> None:
        convert_paths(self, "output", "data")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The exported folder, the content of certificate.json, and the sizes of both folders in bytes."""

    output: Path
    certificate: dict[str, Any]
    bytes_before: int
    bytes_after: int


def export(request: ExportRequest, watch: ProgressCallback = ignore_progress) -> ExportResult:
    """Write a model for another engine or precision, and measure what it lost; nothing is written if refused."""
    if request.target not in TARGETS:
        raise SettingsError(f"there is no export to '{request.target}'; choose one of: {', '.join(TARGETS)}")
    target = TARGETS[request.target]
    tolerance = target.tolerance.with_overrides(request.difference, request.cosine, request.points)
    folder = fetch(request.model)
    if find_export_engine(folder) is not None:
        raise FolderError(f"{folder} is an export itself; give the folder that it was exported from")
    with lock_output(request.output):
        check_output(request.output)
        return _export(request, folder, (target, tolerance), watch)


def _export(
    request: ExportRequest, folder: Path, goal: tuple[ExportTarget, Tolerance], watch: ProgressCallback
) -> ExportResult:
    target, tolerance = goal
    watch(begin_stage("loading the model"))
    original = load(folder, precision="fp32")
    with staged_folder(request.output) as staged:
        sample = _sample(original, request)
        before = _score(original, request, "scoring the original", watch)
        copy_settings(folder, staged, read_folder(folder).config, original.tokenizer)
        watch(begin_stage(f"converting to {request.target}"))
        scheme = target.write(original, staged, sample, tolerance)
        metadata = _metadata(original, staged)
        write_metadata(staged, metadata)  # loading checks the hashes
        watch(begin_stage("loading the export"))
        exported = load(staged, precision="fp32")
        after = _score(exported, request, "scoring the export", watch)
        change = None
        if before is not None and after is not None:
            assert request.data is not None
            change = MetricChange(request.data.name, before, after)
        certificate = Certificate(
            target=request.target,
            sample_description=sample.description,
            parity=compare(original, exported, sample, watch),
            tolerance=tolerance,
            scheme=scheme,
            metric_change=change,
        )
        certificate.check(request.model)
        content = certificate.to_dict() | {"original": _provenance(folder), "versions": versions()}
        write_json(staged / CERTIFICATE, content)
        write_metadata(staged, metadata)
        bytes_before, bytes_after = folder_size(folder), folder_size(staged)
    return ExportResult(request.output, content, bytes_before, bytes_after)


def _metadata(original: LoadedModel, output: Path) -> dict[str, Any]:
    """Return the bertworks.json of an export. That of a graph states its sizes and its task, and config.json the
    labels, so that it runs without the code of its family, and without PyTorch."""
    if find_export_engine(output) is None:
        return original.metadata
    task = None if original.predictor is None else original.predictor.module.task
    head = graph_head(original.mlm_head, original.predictor)
    adds_special_tokens = original.tokenizer.specials.template != PLAIN
    head_kind = "" if head is None else head.kind
    graph_config = GraphConfig.from_encoder_config(original.encoder.config, head_kind, adds_special_tokens)
    metadata = {**original.metadata, GRAPH: asdict(graph_config)}
    if task is not None and "task" not in original.metadata:
        config_path = output / "config.json"
        write_json(config_path, {**read_config(config_path), **task.config()})
        metadata |= {"task": task.name, **task.metadata()}
    return metadata


def _sample(model: LoadedModel, request: ExportRequest) -> ParitySample:
    if request.data is None:
        return builtin_sample(model)
    if not request.data.is_file():
        raise InputError(f"{request.data} is not a file; give a labelled file of the model's task, or texts")
    if model.predictor is None:
        texts = texts_in(str(request.data), request.columns.get("text"))
        sample = sample_of_texts(model, texts, request.data.name)
    else:
        sample = sample_of_examples(model, _examples(model, request), request.data.name)
    if not sample.sequences:
        raise InputError(f"{request.data} has no text to compare on; give a file with at least one text")
    return sample


def _examples(model: LoadedModel, request: ExportRequest) -> Iterator[Any]:
    assert model.predictor is not None
    assert request.data is not None
    return model.predictor.module.task.read(request.data, request.columns)


def _score(model: LoadedModel, request: ExportRequest, stage: str, watch: ProgressCallback) -> TaskScores | None:
    """Return the metrics of a fine-tuned model on `request.data`, if it is given."""
    if model.predictor is None or request.data is None:
        return None
    total = sum(len(examples_in(example)) for example in _examples(model, request))
    pairs = model.predictor.predict(_examples(model, request))
    return model.predictor.module.task.score(report_progress(pairs, Progress(stage, 0, total, "examples"), watch))


def _provenance(folder: Path) -> dict[str, str]:
    """Return the name of the original folder and the hash of its weights file or index."""
    weights = find_weights(folder)
    return {"folder": folder.resolve().name} | ({"sha256": sha256(weights)} if weights is not None else {})
