"""Runs in, one folder for production out; such a folder in, its models and corpus out, every hash checked.

    bundle.json        models, corpus, the hash of every file, and the chain: corpus -> pretrained -> fine-tuned
    models/NAME/       a model folder, as its run wrote it
    corpus/            the manifest of the corpus; its text, and an index to search it, where they were asked for

A link of the chain is `recorded` if the later one's own bertworks.json names the hash of the earlier; otherwise it is
what the person who made the bundle said.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import bertworks
from bertworks.corpus.corpus import MANIFEST, read_manifest
from bertworks.corpus.text_shard import SplitDocument, read_text
from bertworks.disk import explain_os_error, read_json, sha256, write_json
from bertworks.engines.runtimes import RUNTIMES, find_export_engine
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.model import load
from bertworks.models.provenance import (
    BASE_FOLDER,
    BASE_HASH,
    CORPUS_FOLDER,
    CORPUS_HASH,
    corpus_hash,
    display_name,
    recorded_folder,
)
from bertworks.models.weights import find_weights
from bertworks.serving.models import check_name, named_folders
from bertworks.serving.passage_search import write_passages, write_vectors

BUNDLE = "bundle.json"
FORMAT = 1
CORPUS = "corpus"


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """What to put together. `runs` and `bases` are NAME=FOLDER or FOLDER, of runs or models; bases are the pretrained
    ones. `corpus` is taken with its text, `manifest` without. Bases and the corpus that are not given are looked for
    where the runs recorded them. `index` names the model that embeds the text for search: "" chooses one, "none" makes
    no index."""

    runs: tuple[str, ...]
    output: Path
    bases: tuple[str, ...] = ()
    corpus: Path | None = None
    manifest: Path | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """That `later` came from `earlier`, whose hash is `sha256`; None where it is not in the bundle."""

    later: str
    earlier: str | None
    sha256: str | None
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk: its models by name, where the index of its corpus lies, and which model made it."""

    folder: Path
    models: Mapping[str, Path]
    chain: tuple[Link, ...]
    index: Path | None = None
    index_model: str = ""
    num_files: int = 0


@dataclass(frozen=True, slots=True)
class _BundleModel:
    """A model to be put in: where it lies, what its folder tells, and the hash of its weights."""

    name: str
    path: Path
    metadata: Mapping[str, Any]
    sha256: str

    @property
    def is_finetuned(self) -> bool:
        return "task" in self.metadata


@dataclass(slots=True)
class _BundleWriter:
    """A bundle in the making."""

    request: BundleRequest
    staging_folder: Path
    files: dict[str, str] = field(default_factory=dict)

    def copy(self, source: Path, target: str) -> None:
        """Copy a file into the bundle and note its hash."""
        path = self.staging_folder / target
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
        except OSError as error:
            raise explain_os_error(error, path) from error
        self.record_hash(target)

    def record_hash(self, target: str) -> None:
        self.files[target] = sha256(self.staging_folder / target)


def bundle(request: BundleRequest, watch: Callable[[int, int], None] = lambda done, total: None) -> Bundle:
    """Make a bundle. `watch` is told how many passages of the corpus are embedded. A killed one is taken up again."""
    if request.output.exists():
        raise FolderError(f"{request.output} exists; choose another folder with --out, or remove it")
    if request.corpus and request.manifest:
        raise SettingsError("the corpus was given with its text and again for its manifest alone; leave one out")
    models = _collect_models(request)
    if not request.corpus and not request.manifest:
        request = replace(request, corpus=_recorded_corpus(models))
    making = _BundleWriter(request, request.output.with_name(f".{request.output.name}.part"))
    for one in models:
        for file in _model_files(one.path):
            making.copy(file, f"models/{one.name}/{file.relative_to(one.path).as_posix()}")
    corpus = _copy_corpus(making)
    index = _build_index(making, models, watch) if request.corpus and request.index != "none" else None
    chain = _build_chain(models, None if corpus is None else corpus["sha256"])
    told = {
        "format": FORMAT,
        "made_by": f"bertworks {bertworks.__version__}",
        "models": {one.name: {"task": one.metadata.get("task"), "sha256": one.sha256} for one in models},
        "corpus": corpus,
        "index": index,
        "chain": [{name: getattr(link, name) for name in Link.__slots__} for link in chain],
        "files": making.files,
    }
    write_json(making.staging_folder / BUNDLE, told)
    making.staging_folder.rename(request.output)
    return read_bundle(request.output)


def read_bundle(folder: Path) -> Bundle:
    """Open a bundle and check every file and every link; a file that changed is refused by name."""
    told = read_json(folder / BUNDLE, "a bundle (see `bertworks bundle`)")
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise FolderError(f"{folder / BUNDLE} is not of this format ({FORMAT}); make the bundle anew")
    for name, digest in told["files"].items():
        path = folder / name
        if not path.is_file():
            raise FolderError(f"{folder} lacks {name}, which its {BUNDLE} lists; copy or make the bundle anew")
        if sha256(path) != digest:
            raise FolderError(f"{path} is not what {BUNDLE} says: it changed or was damaged; make the bundle anew")
    chain = tuple(Link(**link) for link in told["chain"])
    for link in chain:
        _check_link(folder, told, link)
    models = {name: folder / "models" / name for name in told["models"]}
    index = told["index"]
    return Bundle(
        folder,
        models,
        chain,
        folder / CORPUS if index else None,
        index["model"] if index else "",
        len(told["files"]),
    )


def is_bundle(folder: Path) -> bool:
    return (folder / BUNDLE).is_file()


def _check_link(folder: Path, manifest: Mapping[str, Any], link: Link) -> None:
    """Refuse a link whose ends do not have the hashes that it states."""
    if link.earlier is None or link.sha256 is None:
        return
    stated = manifest["corpus"] if link.earlier == CORPUS else manifest["models"].get(link.earlier)
    is_right = stated is not None and stated["sha256"] == link.sha256
    if is_right and link.earlier != CORPUS:
        weights = _weights_file(folder / "models" / link.earlier)
        is_right = weights is not None and manifest["files"].get(weights.relative_to(folder).as_posix()) == link.sha256
    if is_right and link.earlier == CORPUS:
        is_right = corpus_hash(read_manifest(folder / CORPUS)) == link.sha256
    if not is_right:
        raise FolderError(
            f"{folder / BUNDLE}: '{link.later}' should come from '{link.earlier}', but their hashes do not fit; make "
            f"the bundle anew"
        )


def _collect_models(request: BundleRequest) -> list[_BundleModel]:
    """Return the models of all runs and bases, each once."""
    if not request.runs:
        raise InputError("there is nothing to bundle; name at least one run or model folder")
    folders = named_folders(request.runs)
    seen = {Path(folder).resolve() for folder in folders.values()}
    for name, folder in named_folders(request.bases).items():
        if Path(folder).resolve() not in seen:
            free = name if name not in folders else f"{name}-base"
            check_name(free, folder)
            folders[free] = folder
    found = [_read_model(name, Path(folder)) for name, folder in folders.items()]
    for one in found:  # which grows on the way: a base may have a base too
        base = _recorded_base(one, found)
        if base is not None:
            found.append(base)
    return found


def _read_model(name: str, folder: Path) -> _BundleModel:
    weights = _weights_file(folder) if folder.is_dir() else None
    if weights is None:
        raise InputError(f"{folder} holds no model with weights; give a finished run, or a model folder")
    path = folder / "bertworks.json"
    told = read_json(path, "a model folder") if path.is_file() else {}
    return _BundleModel(name, folder, told, sha256(weights))


def _recorded_base(model: _BundleModel, others: Sequence[_BundleModel]) -> _BundleModel | None:
    """Return the base of a model from where its run recorded it, unless it is known, gone or no longer the same."""
    recorded = model.metadata.get(BASE_HASH)
    folder = recorded_folder(model.path, BASE_FOLDER)
    if recorded is None or folder is None or recorded in {other.sha256 for other in others}:
        return None
    weights = _weights_file(folder)
    if weights is None or sha256(weights) != recorded:
        return None
    taken = {other.name for other in others}
    name = display_name(folder)
    name = name if name not in taken else f"{name}-base"
    check_name(name, str(folder))
    return None if name in taken else _read_model(name, folder)


def _recorded_corpus(models: Sequence[_BundleModel]) -> Path | None:
    """Return the corpus that the models learned from, from where their runs recorded it; None if there are several."""
    found = {}
    for one in models:
        folder = recorded_folder(one.path, CORPUS_FOLDER)
        if folder is not None and (folder / MANIFEST).is_file():
            digest = corpus_hash(read_manifest(folder))
            if digest == one.metadata.get(CORPUS_HASH):
                found[digest] = folder
    return next(iter(found.values())) if len(found) == 1 else None


def _weights_file(folder: Path) -> Path | None:
    """Return the file that holds the weights, or the graph of a folder that was exported."""
    engine = find_export_engine(folder)
    return find_weights(folder) if engine is None else folder / RUNTIMES[engine].file


def _model_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model folder; hidden ones and what else a run keeps are no part of it."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _copy_corpus(writer: _BundleWriter) -> dict[str, Any] | None:
    """Copy the corpus, or its manifest, and return what bundle.json says of it."""
    request = writer.request
    source = request.corpus or request.manifest
    if source is None:
        return None
    manifest = read_manifest(source)
    writer.copy(source / MANIFEST, f"{CORPUS}/{MANIFEST}")
    if request.corpus:
        for shard in manifest["shards"]:
            target = f"{CORPUS}/{shard['file']}"
            writer.copy(source / shard["file"], target)
            if writer.files[target] != shard["sha256"]:
                raise FolderError(
                    f"{source / shard['file']} is not what its manifest says; run `bertworks prepare --verify` on it"
                )
    counts = {name: manifest[name] for name in ("documents", "sentences", "characters")}
    return {"sha256": corpus_hash(manifest), "text": request.corpus is not None, **counts}


def _build_index(
    writer: _BundleWriter, models: Sequence[_BundleModel], watch: Callable[[int, int], None]
) -> dict[str, Any]:
    """Cut the text into passages, embed them, and return what bundle.json says of the index."""
    chosen = _select_embedder(models, writer.request.index)
    folder = writer.staging_folder / CORPUS
    count = write_passages(folder, _documents(folder))
    width = write_vectors(folder, load(chosen.path), lambda done: watch(done, count))
    for path in sorted(folder.iterdir()):
        target = f"{CORPUS}/{path.name}"
        if path.is_file() and target not in writer.files:
            writer.record_hash(target)
    return {"model": chosen.name, "passages": count, "width": width}


def _documents(folder: Path) -> Iterator[SplitDocument]:
    for path in sorted((folder / "text").iterdir()):
        yield from read_text(path)


def _select_embedder(models: Sequence[_BundleModel], name: str) -> _BundleModel:
    """Return the model that is best at vectors of texts: one made for it, else a pretrained one, else the first."""
    if name:
        for one in models:
            if one.name == name:
                return one
        raise SettingsError(f"--index {name}: there is no such model; choose {', '.join(m.name for m in models)}")
    return min(models, key=lambda one: (not (one.path / "modules.json").is_file(), one.is_finetuned))


def _build_chain(models: Sequence[_BundleModel], corpus: str | None) -> list[Link]:
    """Return where each model came from; a recorded hash that is nobody's among them is a link into nothing."""
    links = []
    bases = [one for one in models if not one.is_finetuned]
    learned = {one.metadata.get(CORPUS_HASH) for one in bases} - {None}
    if corpus and learned and corpus not in learned:
        names = ", ".join(f"'{one.name}'" for one in bases if one.metadata.get(CORPUS_HASH))
        raise FolderError(f"{names}: trained on another corpus than the one given; give the right one")
    for one in models:
        if one.is_finetuned or BASE_HASH in one.metadata:
            links.append(_base_link(one, bases))
        recorded = one.metadata.get(CORPUS_HASH)
        if recorded:
            links.append(Link(one.name, CORPUS if recorded == corpus else None, str(recorded), True))
        elif corpus is not None and "objective" in one.metadata:  # a model from elsewhere learned elsewhere
            links.append(Link(one.name, CORPUS, corpus, False))
    return links


def _base_link(model: _BundleModel, bases: Sequence[_BundleModel]) -> Link:
    recorded = model.metadata.get(BASE_HASH)
    if recorded:
        base = next((base.name for base in bases if base.sha256 == recorded), None)
        return Link(model.name, base, str(recorded), True)
    # Only a name is recorded: that of the base's folder, which is "model" in a run.
    named = [base for base in bases if model.metadata.get("base") in (base.path.name, base.name)]
    if len(named) == 1:
        return Link(model.name, named[0].name, named[0].sha256, False)
    return Link(model.name, None, None, False)
