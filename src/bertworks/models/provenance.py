"""Where a model came from: its base and its corpus in; hashes that travel with its folder, and places that do not, out.

A model's bertworks.json has the hashes, which hold wherever it is copied to. The run.json of the run that made it has
the folders, which hold on this machine as long as nobody moves them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertworks.corpus.corpus import read_manifest
from bertworks.disk import read_json, sha256
from bertworks.errors import BertworksError
from bertworks.models.hub import fetch
from bertworks.models.weights import find_weights

# What bertworks.json calls the hash of the weights that a model began with, and of the corpus that it learned from.
BASE_HASH, CORPUS_HASH = "base_sha256", "corpus_sha256"
# What run.json calls the folders of the two.
BASE_FOLDER, CORPUS_FOLDER = "base_folder", "corpus_folder"


def corpus_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a corpus: of its text, and not of the vocabularies that it was cut with since."""
    shards = [[shard["file"], shard["sha256"]] for shard in manifest["shards"]]
    return hashlib.sha256(json.dumps(shards, sort_keys=True).encode()).hexdigest()


def hashes_of(base: str | None, corpus: Path | None = None) -> dict[str, str]:
    """Return what bertworks.json says of a base (a folder, or a name on the hub) and a corpus; nothing of lost ones."""
    found = {}
    try:
        weights = None if base is None else find_weights(fetch(base))
        if weights is not None:
            found[BASE_HASH] = sha256(weights)
        if corpus is not None:
            found[CORPUS_HASH] = corpus_hash(read_manifest(corpus))
    except (BertworksError, OSError):  # they were there when the run began; its model is not to be lost for them
        pass
    return found


def folders_of(base: str | None, corpus: Path | None = None) -> dict[str, str]:
    """Return what run.json says of them."""
    found = {}
    if base is not None and Path(base).is_dir():
        found[BASE_FOLDER] = str(Path(base).resolve())
    if corpus is not None:
        found[CORPUS_FOLDER] = str(corpus.resolve())
    return found


def display_name(base: str | Path) -> str:
    """Return what a model is called: by its folder, by its run if it lies in one, or by its name on the hub."""
    resolved = Path(base).resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name


def recorded_folder(model: Path, key: str) -> Path | None:
    """Return the folder of a model's base or corpus, as the run around it recorded it; None if it is not there."""
    facts = model.parent / "run.json"
    if model.name != "model" or not facts.is_file():
        return None
    told = read_json(facts, "the facts of a run")
    place = told.get(key) if isinstance(told, dict) else None
    return Path(place) if isinstance(place, str) and Path(place).is_dir() else None
