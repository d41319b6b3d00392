"""The models of a bundle: run folders in, each model once with its hash, and the provenance that links them, out.

A provenance link is recorded if the bertworks.json of the later model has the hash of the earlier one. Otherwise it
comes from the arguments of `bertworks bundle`: from --base, and from --manifest, which names the corpus of a
pretraining. --corpus names the text to search, which may be any: models are linked to it only if they record its hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.corpus.manifest import MANIFEST, read_manifest
from bertworks.disk import sha256
from bertworks.engines.runtimes import RUNTIMES, find_export_engine
from bertworks.errors import FolderError, InputError
from bertworks.models.metadata import read_metadata
from bertworks.models.provenance import (
    BASE_FOLDER,
    BASE_HASH,
    CORPUS_FOLDER,
    CORPUS_HASH,
    corpus_hash,
    display_name,
    recorded_folder,
)
from bertworks.models.weight_files import find_weights
from bertworks.serving.bundle_manifest import BUNDLE, CORPUS
from bertworks.serving.models import check_name, named_folders


@dataclass(frozen=True, slots=True)
class BundleModel:
    """A model to bundle: its folder, the content of bertworks.json, and the hash of its weights."""

    name: str
    path: Path
    metadata: Mapping[str, Any]
    sha256: str

    @property
    def is_finetuned(self) -> bool:
        return "task" in self.metadata


@dataclass(frozen=True, slots=True)
class Link:
    """The model `later` was trained from `earlier`, a base model or the corpus, with hash `sha256`.

    `earlier` is None if it is not in the bundle.
    """

    later: str
    earlier: str | None
    sha256: str | None
    is_recorded: bool


def collect_models(runs: Sequence[str], bases: Sequence[str]) -> list[BundleModel]:
    """Return the models of all runs and bases, each once."""
    if not runs:
        raise InputError("nothing to bundle; give at least one run or model folder")
    folders = named_folders(runs)
    run_folders = {Path(folder).resolve() for folder in folders.values()}
    for name, folder in named_folders(bases).items():
        if Path(folder).resolve() not in run_folders:
            unique_name = name if name not in folders else f"{name}-base"
            check_name(unique_name, folder)
            folders[unique_name] = folder
    models = [_read_model(name, Path(folder)) for name, folder in folders.items()]
    for model in models:  # grows during the loop: a base may have a base too
        base = _recorded_base(model, models)
        if base is not None:
            models.append(base)
    return models


def _read_model(name: str, folder: Path) -> BundleModel:
    weights = _weights_file(folder) if folder.is_dir() else None
    if weights is None:
        raise InputError(f"{folder} has no model weights; give a finished run or a model folder")
    return BundleModel(name, folder, read_metadata(folder), sha256(weights))


def _recorded_base(model: BundleModel, others: Sequence[BundleModel]) -> BundleModel | None:
    """Return the base of a model from the folder its run recorded; None if it is known, gone or has changed."""
    base_hash = model.metadata.get(BASE_HASH)
    folder = recorded_folder(model.path, BASE_FOLDER)
    if base_hash is None or folder is None or base_hash in {other.sha256 for other in others}:
        return None
    weights = _weights_file(folder)
    if weights is None or sha256(weights) != base_hash:
        return None
    used_names = {other.name for other in others}
    name = display_name(folder)
    name = name if name not in used_names else f"{name}-base"
    check_name(name, str(folder))
    return None if name in used_names else _read_model(name, folder)


def recorded_corpus(models: Sequence[BundleModel]) -> Path | None:
    """Return the corpus folder that the models' runs recorded; None if there are several."""
    folders = {}
    for model in models:
        folder = recorded_folder(model.path, CORPUS_FOLDER)
        if folder is not None and (folder / MANIFEST).is_file():
            digest = corpus_hash(read_manifest(folder))
            if digest == model.metadata.get(CORPUS_HASH):
                folders[digest] = folder
    return next(iter(folders.values())) if len(folders) == 1 else None


def _weights_file(folder: Path) -> Path | None:
    """Return the weights file of a model folder, or the graph of an exported one."""
    engine = find_export_engine(folder)
    return find_weights(folder) if engine is None else folder / RUNTIMES[engine].file


def build_chain(models: Sequence[BundleModel], corpus_folder: Path | None, manifest_folder: Path | None) -> list[Link]:
    """Return the provenance of each model; `earlier` is None where no part of the bundle has the recorded hash.

    A manifest without text is of use only as the origin of a model, so it must be the right one; a text to search may
    be any.
    """
    links = []
    bases = [model for model in models if not model.is_finetuned]
    source = corpus_folder or manifest_folder
    corpus = None if source is None else corpus_hash(read_manifest(source))
    training_corpora = {model.metadata.get(CORPUS_HASH) for model in bases} - {None}
    if manifest_folder and training_corpora and corpus not in training_corpora:
        names = ", ".join(f"'{model.name}'" for model in bases if model.metadata.get(CORPUS_HASH))
        raise FolderError(
            f"{names}: trained on another corpus than that of --manifest; give the right corpus, or --corpus for a "
            f"text to search"
        )
    for model in models:
        if model.is_finetuned or BASE_HASH in model.metadata:
            links.append(_base_link(model, bases))
        recorded = model.metadata.get(CORPUS_HASH)
        if recorded:
            links.append(Link(model.name, CORPUS if recorded == corpus else None, str(recorded), True))
        elif manifest_folder and "objective" in model.metadata:  # only models that bertworks pretrained
            links.append(Link(model.name, CORPUS, corpus, False))
    return links


def _base_link(model: BundleModel, bases: Sequence[BundleModel]) -> Link:
    recorded = model.metadata.get(BASE_HASH)
    if recorded:
        base = next((base.name for base in bases if base.sha256 == recorded), None)
        return Link(model.name, base, str(recorded), True)
    # Without a hash, match by the name of the base's folder, which is "model" in a run.
    matches = [base for base in bases if model.metadata.get("base") in (base.path.name, base.name)]
    if len(matches) == 1:
        return Link(model.name, matches[0].name, matches[0].sha256, False)
    return Link(model.name, None, None, False)


def check_link(folder: Path, manifest: Mapping[str, Any], link: Link) -> None:
    """Raise FolderError if the earlier end of a link does not have the hash of the link."""
    if link.earlier is None or link.sha256 is None:
        return
    entry = manifest["corpus"] if link.earlier == CORPUS else manifest["models"].get(link.earlier)
    is_valid = entry is not None and entry["sha256"] == link.sha256
    if is_valid and link.earlier != CORPUS:
        weights = _weights_file(folder / "models" / link.earlier)
        is_valid = weights is not None and manifest["files"].get(weights.relative_to(folder).as_posix()) == link.sha256
    if is_valid and link.earlier == CORPUS:
        is_valid = corpus_hash(read_manifest(folder / CORPUS)) == link.sha256
    if not is_valid:
        raise FolderError(
            f"{folder / BUNDLE}: '{link.later}' should be trained from '{link.earlier}', but the hashes do not match; "
            f"build the bundle again"
        )
