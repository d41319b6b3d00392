"""Bundles: training runs in, one self-contained folder for production out; a bundle in, its checked models out.

    bundle.json        models, corpus, the sha256 of every file, and the provenance: corpus -> pretrained -> fine-tuned
    models/NAME/       a model folder, as its run wrote it
    corpus/            the manifest of the corpus; optionally its text and a search index

A provenance link is recorded if the bertworks.json of the later model has the hash of the earlier one. Otherwise it
comes from the arguments of `bertworks bundle`: from --base, and from --manifest, which names the corpus of a
pretraining. --corpus names the text to search, which may be any: models are linked to it only if they record its hash.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import bertworks
from bertworks.corpus.manifest import MANIFEST, read_manifest
from bertworks.corpus.text_shard import SplitDocument, read_text
from bertworks.disk import explain_os_error, resumable_folder, sha256, write_json
from bertworks.engines.runtimes import RUNTIMES, find_export_engine
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.folder_lock import lock_output
from bertworks.inference.model import load
from bertworks.integrity.hashing import MISSING, UNREADABLE, FileHash, FileProblem, find_problems
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
from bertworks.progress import Progress, ProgressCallback, ignore_progress
from bertworks.serving.bundle_manifest import BUNDLE, FORMAT, read_bundle_manifest
from bertworks.serving.models import check_name, named_folders
from bertworks.serving.passage_search import VECTORS, write_passages, write_vectors
from bertworks.settings import from_table
from bertworks.vocabulary.text_coverage import CoverageWarning

CORPUS = "corpus"
# What an interrupted bundle keeps for the next: the vectors so far, hours of work.
_VECTOR_PARTS = f"{CORPUS}/.{VECTORS}.parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """What to bundle.

    runs, bases   NAME=FOLDER or FOLDER of runs or models; bases are the pretrained models
    corpus        any corpus folder; it is copied with its text, which is searched
    manifest      corpus folder that a model was trained on, of which only the manifest is copied
    index         name of the model that embeds the text for search; "" selects one, "none" builds no index

    Bases and a corpus that are not given are taken from where the runs recorded them.
    """

    runs: tuple[str, ...]
    output: Path
    bases: tuple[str, ...] = ()
    corpus: Path | None = None
    manifest: Path | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """The model `later` was trained from `earlier`, a base model or the corpus, with hash `sha256`.

    `earlier` is None if it is not in the bundle.
    """

    later: str
    earlier: str | None
    sha256: str | None
    is_recorded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle on disk: its models by name, its provenance, and its search index with the model that built it.

    `warnings`, of a bundle that was just written, say that the vocabulary of that model hardly reads the text.
    """

    folder: Path
    models: Mapping[str, Path]
    chain: tuple[Link, ...]
    index: Path | None = None
    index_model: str = ""
    num_files: int = 0
    warnings: Sequence[CoverageWarning] = ()


@dataclass(frozen=True, slots=True)
class _BundleModel:
    """A model to bundle: its folder, the content of bertworks.json, and the hash of its weights."""

    name: str
    path: Path
    metadata: Mapping[str, Any]
    sha256: str

    @property
    def is_finetuned(self) -> bool:
        return "task" in self.metadata


@dataclass(slots=True)
class _BundleWriter:
    """Writes the files of a bundle to a staging folder."""

    request: BundleRequest
    staging_folder: Path
    files: dict[str, str] = field(default_factory=dict)

    def copy(self, source: Path, target: str) -> None:
        """Copy a file into the bundle and record its hash."""
        path = self.staging_folder / target
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
        except OSError as error:
            raise explain_os_error(error, path) from error
        self.record_hash(target)

    def record_hash(self, target: str) -> None:
        self.files[target] = sha256(self.staging_folder / target)


def bundle(request: BundleRequest, on_progress: ProgressCallback = ignore_progress) -> Bundle:
    """Write a bundle.

    After an interruption the same request continues with the vectors that are already in the staging folder.
    """
    if request.corpus and request.manifest:
        raise SettingsError("both --corpus and --manifest are given; leave one out")
    with lock_output(request.output):
        if request.output.exists():
            raise FolderError(f"{request.output} exists; choose another folder with --output, or remove it")
        models = _collect_models(request)
        if not request.corpus and not request.manifest:
            request = replace(request, corpus=_recorded_corpus(models))
        embedder = _select_embedder(models, request.index) if request.corpus and request.index != "none" else None
        with resumable_folder(request.output, _VECTOR_PARTS, _index_hash(request, embedder)) as staging_folder:
            warnings = _write_bundle(_BundleWriter(request, staging_folder), models, embedder, on_progress)
    return replace(read_bundle(request.output, on_progress), warnings=warnings)


def _index_hash(request: BundleRequest, embedder: _BundleModel | None) -> str:
    """Return a hash of what the vectors of the index depend on: the model and the text."""
    if request.corpus is None or embedder is None:
        return "0"
    inputs = f"{embedder.sha256} {corpus_hash(read_manifest(request.corpus))}"
    return hashlib.sha256(inputs.encode()).hexdigest()[:16]


def _write_bundle(
    writer: _BundleWriter,
    models: Sequence[_BundleModel],
    embedder: _BundleModel | None,
    on_progress: ProgressCallback,
) -> Sequence[CoverageWarning]:
    """Write all files of a bundle, and the manifest last; return the warnings of the index."""
    chain = _build_chain(models, writer.request)
    for number, model in enumerate(models, 1):
        for file in _model_files(model.path):
            writer.copy(file, f"models/{model.name}/{file.relative_to(model.path).as_posix()}")
        on_progress(Progress("copying models", number, len(models), "models"))
    corpus = _copy_corpus(writer, on_progress)
    index, warnings = (None, ()) if embedder is None else _build_index(writer, embedder, on_progress)
    manifest = {
        "format": FORMAT,
        "created_by": f"bertworks {bertworks.__version__}",
        "models": {model.name: {"task": model.metadata.get("task"), "sha256": model.sha256} for model in models},
        "corpus": corpus,
        "index": index,
        "chain": [{name: getattr(link, name) for name in Link.__slots__} for link in chain],
        "files": writer.files,
    }
    write_json(writer.staging_folder / BUNDLE, manifest)
    return warnings


def read_bundle(folder: Path, watch: ProgressCallback = ignore_progress) -> Bundle:
    """Open a bundle and verify every file and every provenance link; a file that it does not list is refused."""
    manifest = read_bundle_manifest(folder)
    hashes = {name: FileHash(digest) for name, digest in manifest["files"].items()}
    for problem in find_problems(folder, hashes, watch=watch):
        raise FolderError(_describe_problem(folder, problem))
    _check_unlisted(folder, manifest["files"])
    chain = tuple(from_table(Link, link, f"{folder / BUNDLE}, chain") for link in manifest["chain"])
    for link in chain:
        _check_link(folder, manifest, link)
    index = manifest["index"]
    return Bundle(
        folder=folder,
        models={name: folder / "models" / name for name in manifest["models"]},
        chain=chain,
        index=folder / CORPUS if index else None,
        index_model=index["model"] if index else "",
        num_files=len(manifest["files"]),
    )


def _describe_problem(folder: Path, problem: FileProblem) -> str:
    if problem.kind == MISSING:
        return f"{folder} lacks {problem.name}, which {BUNDLE} lists; copy or build the bundle again"
    if problem.kind == UNREADABLE:
        return f"{folder / problem.name} cannot be read: {problem.detail}"
    path = folder / problem.name
    return f"{path} does not have the sha256 in {BUNDLE}: it was changed or damaged; build the bundle again"


def _check_unlisted(folder: Path, listed: Mapping[str, str]) -> None:
    """Raise FolderError if a bundle has files, hidden ones included, that its manifest does not list."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    unlisted = [name for name in names if name not in listed and name != BUNDLE]
    if unlisted:
        more = f" and {len(unlisted) - 1:,} more" if len(unlisted) > 1 else ""
        raise FolderError(f"{folder} has {unlisted[0]}{more}, which {BUNDLE} does not list; remove what is not listed")


def is_bundle(folder: Path) -> bool:
    return (folder / BUNDLE).is_file()


def _check_link(folder: Path, manifest: Mapping[str, Any], link: Link) -> None:
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


def _collect_models(request: BundleRequest) -> list[_BundleModel]:
    """Return the models of all runs and bases, each once."""
    if not request.runs:
        raise InputError("nothing to bundle; give at least one run or model folder")
    folders = named_folders(request.runs)
    run_folders = {Path(folder).resolve() for folder in folders.values()}
    for name, folder in named_folders(request.bases).items():
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


def _read_model(name: str, folder: Path) -> _BundleModel:
    weights = _weights_file(folder) if folder.is_dir() else None
    if weights is None:
        raise InputError(f"{folder} has no model weights; give a finished run or a model folder")
    return _BundleModel(name, folder, read_metadata(folder), sha256(weights))


def _recorded_base(model: _BundleModel, others: Sequence[_BundleModel]) -> _BundleModel | None:
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


def _recorded_corpus(models: Sequence[_BundleModel]) -> Path | None:
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


def _model_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model folder without hidden ones."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not is_hidden:
            yield path


def _copy_corpus(writer: _BundleWriter, on_progress: ProgressCallback) -> dict[str, Any] | None:
    """Copy the corpus, or only its manifest, and return its entry in bundle.json."""
    request = writer.request
    source = request.corpus or request.manifest
    if source is None:
        return None
    manifest = read_manifest(source)
    writer.copy(source / MANIFEST, f"{CORPUS}/{MANIFEST}")
    if request.corpus:
        for number, shard in enumerate(manifest["shards"], 1):
            target = f"{CORPUS}/{shard['file']}"
            if not (source / shard["file"]).is_file():
                raise FolderError(
                    f"{source} lacks {shard['file']}, the text to search; restore it, or give the folder with "
                    f"--manifest instead of --corpus"
                )
            writer.copy(source / shard["file"], target)
            if writer.files[target] != shard["sha256"]:
                raise FolderError(
                    f"{source / shard['file']} does not have the sha256 in its manifest; run `bertworks prepare "
                    f"--verify` on it"
                )
            on_progress(Progress("copying the corpus", number, len(manifest["shards"]), "shards"))
    counts = {name: manifest[name] for name in ("documents", "sentences", "characters")}
    return {"sha256": corpus_hash(manifest), "text": request.corpus is not None, **counts}


def _build_index(
    writer: _BundleWriter, embedder: _BundleModel, on_progress: ProgressCallback
) -> tuple[dict[str, Any], Sequence[CoverageWarning]]:
    """Split the text into passages, embed them, and return the index's entry in bundle.json, and warnings.

    Vectors are computed from the text, so the corpus need not have the tokens of the model's vocabulary.
    """
    model = load(embedder.path)
    coverage = model.new_coverage()
    folder = writer.staging_folder / CORPUS
    num_passages = write_passages(folder, _documents(folder))
    vector_size = write_vectors(
        folder, model, lambda done: on_progress(Progress("embed", done, num_passages, "passages")), coverage
    )
    for path in sorted(folder.iterdir()):
        target = f"{CORPUS}/{path.name}"
        if path.is_file() and target not in writer.files:
            writer.record_hash(target)
    entry = {"model": embedder.name, "num_passages": num_passages, "vector_size": vector_size}
    return entry, coverage.warnings()


def _documents(folder: Path) -> Iterator[SplitDocument]:
    for path in sorted((folder / "text").iterdir()):
        yield from read_text(path)


def _select_embedder(models: Sequence[_BundleModel], name: str) -> _BundleModel:
    """Return the named model; by default a sentence-transformers model, else a pretrained one, else the first."""
    if name:
        for model in models:
            if model.name == name:
                return model
        names = ", ".join(model.name for model in models)
        raise SettingsError(f"--index {name}: no such model; choose one of: {names}")
    return min(models, key=lambda model: (not (model.path / "modules.json").is_file(), model.is_finetuned))


def _build_chain(models: Sequence[_BundleModel], request: BundleRequest) -> list[Link]:
    """Return the provenance of each model; `earlier` is None where no part of the bundle has the recorded hash.

    A manifest without text is of use only as the origin of a model, so it must be the right one; a text to search may
    be any.
    """
    links = []
    bases = [model for model in models if not model.is_finetuned]
    source = request.corpus or request.manifest
    corpus = None if source is None else corpus_hash(read_manifest(source))
    training_corpora = {model.metadata.get(CORPUS_HASH) for model in bases} - {None}
    if request.manifest and training_corpora and corpus not in training_corpora:
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
        elif request.manifest and "objective" in model.metadata:  # only models that bertworks pretrained
            links.append(Link(model.name, CORPUS, corpus, False))
    return links


def _base_link(model: _BundleModel, bases: Sequence[_BundleModel]) -> Link:
    recorded = model.metadata.get(BASE_HASH)
    if recorded:
        base = next((base.name for base in bases if base.sha256 == recorded), None)
        return Link(model.name, base, str(recorded), True)
    # Without a hash, match by the name of the base's folder, which is "model" in a run.
    matches = [base for base in bases if model.metadata.get("base") in (base.path.name, base.name)]
    if len(matches) == 1:
        return Link(model.name, matches[0].name, matches[0].sha256, False)
    return Link(model.name, None, None, False)
