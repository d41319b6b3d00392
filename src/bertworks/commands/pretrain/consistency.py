"""Do all machines mean the same run? What each process says of it in; nothing out, or an error that names who differs.

A run whose machines disagree would not fail: it would learn something that nobody asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertworks
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError
from bertworks.training.process_group import all_gather

# What a run consists of, and what to do where machines differ in it.
_REMEDIES = {
    "recipe": "start all machines with the same recipe and options",
    "corpus": "give all machines the same corpus folder",
    "start": "give all machines the same model to start from",
    "run": "start all machines with the same options, on a disk that they share",
    "version": "install the same versions on all machines",
}

# (what of the run, which part of it) -> what a process has there
RunFingerprint = dict[str, dict[str, str]]


def run_fingerprint(
    recipe: PretrainRecipe, corpus: Corpus, init_digest: str, options: Mapping[str, object]
) -> RunFingerprint:
    """Return all that has to be the same everywhere. `start` tells one model to begin with from another."""
    shards = json.dumps(corpus.tokens_manifest["shards"], sort_keys=True).encode()
    return {
        "recipe": dict(_flatten_settings(asdict(recipe))),
        "corpus": {
            "pieces": f"{corpus.tokens_manifest['counts']['tokens']:,}",
            "vocabulary": f"{corpus.tokenizer.vocab_size:,}",
            "sha256": hashlib.sha256(shards).hexdigest()[:12],
        },
        "start": {"weights": init_digest},
        "run": {name: str(value) for name, value in options.items()},
        "version": {
            "bertworks": _source_hash(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def check_consistency(fingerprint: RunFingerprint) -> None:
    """Compare with what the other processes say. All raise the same error if anything differs."""
    told = [json.loads(one) for one in all_gather(json.dumps({"node": _node_name(), "facts": fingerprint}))]
    ours = told[0]
    for kind, way_out in _REMEDIES.items():
        for one in told[1:]:
            for part in {**ours["facts"][kind], **one["facts"][kind]}:
                here, there = (each["facts"][kind].get(part, "not there") for each in (ours, one))
                if here != there:
                    raise SettingsError(
                        f"the machines do not mean the same run: {kind}, {part} is {here} on {ours['node']}, but "
                        f"{there} on {one['node']}; {way_out}"
                    )


def _flatten_settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a recipe by its full name."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value, default=str)


def _node_name() -> str:
    """Return the name of this machine; torchrun numbers them, for those that have the same."""
    number = os.environ.get("GROUP_RANK")
    return socket.gethostname() if number is None else f"node {number} ({socket.gethostname()})"


def _source_hash() -> str:
    """Return a hash of this package's own files: two copies of one version may still differ."""
    folder = Path(bertworks.__file__).parent
    hashed = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        hashed.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return hashed.hexdigest()[:12]
