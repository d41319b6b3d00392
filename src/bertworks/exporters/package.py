"""Packages: a model folder with its run in, the source of an installable Python package with fp16 weights out.

The package has the model folder, a certificate of the rounding to fp16, and a model card; `bertworks.packages` has its
layout. Equal inputs give equal bytes.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertworks.corpus.manifest import read_manifest
from bertworks.disk import staged_folder, write_text
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.exporters.corpus_facts import held_out_texts, read_corpus_facts
from bertworks.exporters.export import ExportRequest, export
from bertworks.exporters.folder import check_output, folder_size
from bertworks.exporters.model_card import CardContent, summary, write_card
from bertworks.folder_lock import lock_output
from bertworks.integrity.model_files import check_model_files, write_metadata
from bertworks.models.folder import ModelFolder, read_folder
from bertworks.models.hub import fetch
from bertworks.models.provenance import CORPUS_FOLDER, CORPUS_HASH, corpus_hash
from bertworks.packages import MODEL_FOLDER, is_model_name, module_name
from bertworks.progress import ProgressCallback, begin_stage, ignore_progress
from bertworks.reports.pretrain_run import RUN_INFO, PretrainRun, read_pretrain_run

MAX_MEGABYTES = 30.0
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
_LICENSE = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "bertworks-{name}"
version = "{version}"
description = "{summary}"
readme = "README.md"
license = "{license}"
requires-python = ">=3.11"

[tool.setuptools]
packages = ["{module}"]

[tool.setuptools.package-data]
{module} = ["model/**"]
"""

_INIT = '''\
"""The model {name} of bertworks: `bertworks.load("{name}")`; `folder` is its model folder, for other libraries."""

from pathlib import Path

__version__ = "{version}"

folder = Path(__file__).parent / "model"


def load():
    """Return the model, as `bertworks.load("{name}")` does."""
    import bertworks

    return bertworks.load(folder)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRequest:
    """What to package.

    model          a model folder, or a run folder with one inside
    name           of the model: en-small; the package is bertworks-en-small
    output         folder to write
    run            run folder that trained the model; by default the one that it is in
    corpus         corpus folder of that run; by default the one that the run recorded, if it still exists
    notes          Markdown file of hand-written sections of the model card
    texts          file of texts to compare both precisions on; by default held-out ones, else the built-in ones
    license        of the model, an SPDX expression
    difference     the largest difference allowed in any output
    max_megabytes  the largest size allowed of the weights
    """

    model: str
    name: str
    output: Path
    run: Path | None = None
    corpus: Path | None = None
    notes: Path | None = None
    texts: Path | None = None
    version: str = "1.0.0"
    license: str = "Apache-2.0"
    difference: float | None = None
    max_megabytes: float = MAX_MEGABYTES


@dataclass(frozen=True, slots=True)
class PackageResult:
    """The package folder, the content of certificate.json, its size in bytes, and what is missing in its card."""

    output: Path
    certificate: dict[str, Any]
    num_bytes: int
    absent: tuple[str, ...]


def package(request: PackageRequest, watch: ProgressCallback = ignore_progress) -> PackageResult:
    """Write the source of a package; nothing is written if the model is refused."""
    with lock_output(request.output):
        _check_request(request)
        return _package(_with_run(request), watch)


def _package(request: PackageRequest, watch: ProgressCallback) -> PackageResult:
    notes = _read_notes(request.notes)
    original = read_folder(fetch(request.model))
    run = None if request.run is None else read_pretrain_run(request.run)
    corpus = _find_corpus(request, original, run)
    with staged_folder(request.output) as staged:
        model = staged / module_name(request.name) / MODEL_FOLDER
        with _comparison_texts(request, None if "task" in original.metadata else corpus) as texts:
            certificate = _write_model(replace(request, texts=texts), model, watch)
        watch(begin_stage("writing the model card"))
        content = CardContent(
            name=request.name,
            version=request.version,
            license=request.license,
            config=original.encoder_config,
            tokenizer=original.tokenizer,
            num_parameters=sum(math.prod(values.shape) for values in original.tensors.values()),
            metadata=original.metadata,
            certificate=certificate,
            files=model,
            run=run,
            corpus=None if corpus is None else read_corpus_facts(corpus, original.tokenizer.hash),
            notes=notes,
        )
        _write_project(staged, content)
        num_bytes = folder_size(staged)
    return PackageResult(request.output, certificate, num_bytes, tuple(_absent_parts(content)))


def _check_request(request: PackageRequest) -> None:
    if not is_model_name(request.name):
        raise SettingsError(
            f"'{request.name}' cannot be the name of a packaged model; use lower-case letters, digits and hyphens, "
            f"such as en-small"
        )
    if not _VERSION.fullmatch(request.version):
        raise SettingsError(f"'{request.version}' is no version of a Python package; write it like 1.0.0")
    if not _LICENSE.fullmatch(request.license):
        raise SettingsError(f"'{request.license}' is no SPDX license expression; write it like Apache-2.0")
    check_output(request.output)


def _with_run(request: PackageRequest) -> PackageRequest:
    """Return the request with its model and run folder: either may be given by the other."""
    folder = Path(request.model)
    if (folder / MODEL_FOLDER / "config.json").is_file() and not (folder / "config.json").is_file():
        return replace(request, model=str(folder / MODEL_FOLDER), run=request.run or folder)
    if (folder / RUN_INFO).is_file():
        raise FolderError(
            f"{folder} is a run that is not finished and has no model yet; finish it with its own command"
        )
    if request.run is None and folder.name == MODEL_FOLDER and (folder.parent / RUN_INFO).is_file():
        return replace(request, run=folder.parent)
    if request.run is not None and not (request.run / RUN_INFO).is_file():
        raise FolderError(f"{request.run} has no {RUN_INFO}; give the run folder that trained the model with --run")
    return request


def _read_notes(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as notes of the model card ({error}); give a Markdown file") from None


def _find_corpus(request: PackageRequest, model: ModelFolder, run: PretrainRun | None) -> Path | None:
    """Return the corpus that the model was trained on; None if it is not known or has changed."""
    recorded = None if run is None else run.run_info.get(CORPUS_FOLDER)
    folder = request.corpus or (None if recorded is None else Path(recorded))
    if folder is None or (request.corpus is None and not folder.is_dir()):
        return None
    if corpus_hash(read_manifest(folder)) == model.metadata.get(CORPUS_HASH):
        return folder
    if request.corpus is None:
        return None
    raise FolderError(
        f"{folder} is not the corpus that {model.path} was trained on (its text has another hash); give that one with "
        f"--corpus, or none"
    )


@contextlib.contextmanager
def _comparison_texts(request: PackageRequest, corpus: Path | None) -> Iterator[Path | None]:
    """Yield the file of texts to compare both precisions on: the given one, else held-out texts of the corpus."""
    if request.texts is not None or corpus is None:
        yield request.texts
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "the held-out documents"
        path.write_text("\n".join(held_out_texts(corpus)), encoding="utf-8")
        yield path if path.stat().st_size else None


def _write_model(request: PackageRequest, folder: Path, watch: ProgressCallback) -> dict[str, Any]:
    """Write the model folder in fp16 and return its certificate."""
    export_request = ExportRequest(
        model=request.model,
        target="safetensors-fp16",
        output=folder,
        data=request.texts,
        difference=request.difference,
    )
    certificate = export(export_request, watch).certificate
    megabytes = (folder / "model.safetensors").stat().st_size / 1e6
    if megabytes > request.max_megabytes:
        raise FolderError(
            f"the weights of {request.model} have {megabytes:.1f} MB in fp16, and {request.max_megabytes:g} MB are "
            f"allowed; package a smaller model, or raise --max-megabytes"
        )
    write_metadata(folder, {**check_model_files(folder), "name": request.name, "version": request.version})
    return certificate


def _write_project(folder: Path, content: CardContent) -> None:
    module = module_name(content.name)
    fields = {
        "name": content.name,
        "version": content.version,
        "license": content.license,
        "module": module,
        "summary": f"{content.name}: {summary(content)}",
    }
    write_text(folder / "pyproject.toml", _PYPROJECT.format(**fields))
    write_text(folder / module / "__init__.py", _INIT.format(**fields))
    write_text(folder / "README.md", write_card(content))


def _absent_parts(content: CardContent) -> list[str]:
    """Return a sentence for each part of the model card that is missing, with the option that adds it."""
    absent = []
    if content.run is None:
        absent.append("no training, learning curve and baselines: give the run folder with --run")
    if content.corpus is None:
        absent.append("no sources and languages of the data: give the corpus folder with --corpus")
    if not content.notes:
        absent.append("no origins and licences of the data, no scores of tasks: write them into a file for --card")
    return absent
