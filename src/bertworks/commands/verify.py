"""Verify a folder: a model or corpus folder in, how many of its files have their recorded hashes out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bertworks.commands import prepare
from bertworks.corpus.manifest import MANIFEST
from bertworks.disk import write_bytes
from bertworks.engines.runtimes import find_export_engine
from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.inference.model import load
from bertworks.integrity.model_files import METADATA_FILE, accept_changes, verify_model_files
from bertworks.packages import MODEL_FOLDER, packaged_model
from bertworks.progress import ProgressCallback, begin_stage, ignore_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """A verified folder.

    num_files       files that have their recorded hash; 0: the folder has no hashes
    accepted        files whose changes were accepted
    unused_tensors  tensors of the weights that the model has no use for
    notes           what is read otherwise than its name says
    """

    folder: Path
    num_files: int
    accepted: tuple[str, ...] = ()
    unused_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def verify(name: str, accept: bool = False, watch: ProgressCallback = ignore_progress) -> VerifyResult:
    """Hash every file of a corpus, a model or a finished run, and load the model; raise the error of a bad file.

    With `accept`, changes of a model's text files are recorded as its new state first.
    """
    folder = packaged_model(name) or Path(name)
    if not folder.is_dir():
        raise FolderError(f"{folder} is not a folder; give a model, a finished run or a corpus")
    if (folder / MANIFEST).is_file():
        if accept:
            raise SettingsError(f"{folder} is a corpus, whose files must not change; prepare it again instead")
        return VerifyResult(folder=folder, num_files=prepare.verify(folder, watch))
    if (folder / MODEL_FOLDER / "config.json").is_file() and not (folder / "config.json").is_file():
        folder = folder / MODEL_FOLDER
    if not (folder / "config.json").is_file() and not (folder / "bert_config.json").is_file():
        raise FolderError(f"{folder} has no config.json; give a model, a finished run or a corpus")
    return _accept(folder) if accept else _verify_model(folder, watch)


def _accept(folder: Path) -> VerifyResult:
    """Accept the changes of a model, unless it cannot be loaded with them."""
    path = folder / METADATA_FILE
    before = path.read_bytes() if path.is_file() else None
    accepted = accept_changes(folder)
    try:
        return replace(_verify_model(folder), accepted=tuple(accepted))
    except BertworksError:
        if before is None:
            path.unlink()
        else:
            write_bytes(path, before)
        raise


def _verify_model(folder: Path, watch: ProgressCallback = ignore_progress) -> VerifyResult:
    num_files = verify_model_files(folder, watch)
    if find_export_engine(folder) is not None:
        return VerifyResult(folder=folder, num_files=num_files)
    watch(begin_stage("loading the model"))
    report = load(folder).report
    return VerifyResult(folder=folder, num_files=num_files, unused_tensors=report.unexpected_keys, notes=report.notes)
