"""Bundles: training runs in, one self-contained folder for production out; a bundle in, its checked models out.

bundle.json        models, corpus, the sha256 of every file, and the provenance: corpus -> pretrained -> fine-tuned
models/NAME/       a model folder, as its run wrote it
corpus/            the manifest of the corpus; optionally its text and a search index
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
from bertworks.errors import FolderError, SettingsError
from bertworks.folder_lock import lock_output
from bertworks.inference.model import load
from bertworks.integrity.hashing import MISSING, UNREADABLE, FileHash, FileProblem, find_problems
from bertworks.models.provenance import (
    corpus_hash,
)
from bertworks.progress import Progress, ProgressCallback, ignore_progress
from bertworks.serving.bundle_manifest import BUNDLE, CORPUS, FORMAT, read_bundle_manifest
from bertworks.serving.bundle_models import BundleModel, Link, build_chain, check_link, collect_models, recorded_corpus
from bertworks.serving.passage_search import VECTORS, write_passages, write_vectors
from bertworks.settings import from_table
from bertworks.vocabulary.text_coverage import CoverageWarning

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
        models = collect_models(request.runs, request.bases)
        if not request.corpus and not request.manifest:
            request = replace(request, corpus=recorded_corpus(models))
        embedder = _select_embedder(models, request.index) if request.corpus and request.index != "none" else None
        with resumable_folder(request.output, _VECTOR_PARTS, _index_hash(request, embedder)) as staging_folder:
            warnings = _write_bundle(_BundleWriter(request, staging_folder), models, embedder, on_progress)
    return replace(read_bundle(request.output, on_progress), warnings=warnings)


def _index_hash(request: BundleRequest, embedder: BundleModel | None) -> str:
    """Return a hash of what the vectors of the index depend on: the model and the text."""
    if request.corpus is None or embedder is None:
        return "0"
    inputs = f"{embedder.sha256} {corpus_hash(read_manifest(request.corpus))}"
    return hashlib.sha256(inputs.encode()).hexdigest()[:16]


def _write_bundle(
    writer: _BundleWriter,
    models: Sequence[BundleModel],
    embedder: BundleModel | None,
    on_progress: ProgressCallback,
) -> Sequence[CoverageWarning]:
    """Write all files of a bundle, and the manifest last; return the warnings of the index."""
    chain = build_chain(models, writer.request.corpus, writer.request.manifest)
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
        check_link(folder, manifest, link)
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
    writer: _BundleWriter, embedder: BundleModel, on_progress: ProgressCallback
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


def _select_embedder(models: Sequence[BundleModel], name: str) -> BundleModel:
    """Return the named model; by default a sentence-transformers model, else a pretrained one, else the first."""
    if name:
        for model in models:
            if model.name == name:
                return model
        names = ", ".join(model.name for model in models)
        raise SettingsError(f"--index {name}: no such model; choose one of: {names}")
    return min(models, key=lambda model: (not (model.path / "modules.json").is_file(), model.is_finetuned))
