"""Provenance of a model: its base model and corpus in, their hashes and folders out.

bertworks.json of a model has the hashes, which stay valid wherever it is copied. run.json of the run that trained it
has the folders, which are valid on this machine until they are moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertworks.corpus.manifest import read_manifest
from bertworks.disk import read_json, sha256
from bertworks.errors import BertworksError
from bertworks.models.hub import fetch
from bertworks.models.weight_files import find_weights
from bertworks.packages import model_name, packaged_model

# Keys of bertworks.json: hashes of the weights of the base model and of the training corpus.
BASE_HASH, CORPUS_HASH = "base_sha256", "corpus_sha256"
# Key of bertworks.json and of the manifest of a corpus: the languages of the texts.
LANGUAGES = "languages"
# Keys of run.json: their folders.
BASE_FOLDER, CORPUS_FOLDER = "base_folder", "corpus_folder"


# The beginning of the name of a model's folder in the cache of the hub: models--OWNER--NAME/snapshots/COMMIT.
_HUB_PREFIX = "models--"


def corpus_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of the text of a corpus; its tokens, for any vocabulary, do not count."""
    shards = [[shard["file"], shard["sha256"]] for shard in manifest["shards"]]
    return hashlib.sha256(json.dumps(shards, sort_keys=True).encode()).hexdigest()


def hashes_of(base: str | None, corpus: Path | None = None) -> dict[str, str]:
    """Return the entries of bertworks.json for a base model (folder or hub name) and a corpus, if they still exist."""
    hashes = {}
    try:
        weights = None if base is None else find_weights(fetch(base))
        if weights is not None:
            hashes[BASE_HASH] = sha256(weights)
        if corpus is not None:
            hashes[CORPUS_HASH] = corpus_hash(read_manifest(corpus))
    except (BertworksError, OSError):  # removed during the run: the model is saved nevertheless
        pass
    return hashes


def languages_of(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the entry of bertworks.json for the languages of a corpus; empty if its manifest does not name them."""
    return {LANGUAGES: manifest[LANGUAGES]} if manifest.get(LANGUAGES) else {}


def folders_of(base: str | None, corpus: Path | None = None) -> dict[str, str]:
    """Return the entries of run.json for a base model and a corpus."""
    folders = {}
    if base is not None and ((packaged := packaged_model(base)) or Path(base).is_dir()):
        folders[BASE_FOLDER] = str((packaged or Path(base)).resolve())
    if corpus is not None:
        folders[CORPUS_FOLDER] = str(corpus.resolve())
    return folders


def display_name(base: str | Path) -> str:
    """Return the name of a model: of its package or run folder if it is in one, of its folder, or on the hub."""
    resolved = Path(base).resolve()
    if resolved.parent.name == "snapshots" and resolved.parents[1].name.startswith(_HUB_PREFIX):
        return resolved.parents[1].name.removeprefix(_HUB_PREFIX).replace("--", "/")
    return model_name(resolved.parent.name) if resolved.name == "model" else resolved.name


def recorded_folder(model: Path, key: str) -> Path | None:
    """Return the folder of a model's base or corpus from the run.json of its run; None if it does not exist."""
    file = model.parent / "run.json"
    if model.name != "model" or not file.is_file():
        return None
    run_info = read_json(file, "the run.json of a run folder")
    folder = run_info.get(key) if isinstance(run_info, dict) else None
    return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None
