"""Check that all nodes run the same thing: a fingerprint of each process in, an error that names the difference out.

Nodes that disagree on the recipe or the corpus would not fail: they would silently train a different model.
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
from bertworks.parallel.process_group import all_gather

# The parts of a fingerprint, and what to do where nodes differ in one.
_REMEDIES = {
    "recipe": "start all nodes with the same recipe and options",
    "corpus": "use the same corpus folder on all nodes",
    "initial model": "use the same initial model on all nodes",
    "options": "start all nodes with the same options, on a shared disk",
    "version": "install the same versions on all nodes",
}

# part of the fingerprint -> name -> value
RunFingerprint = dict[str, dict[str, str]]


def run_fingerprint(
    recipe: PretrainRecipe, corpus: Corpus, init_digest: str, options: Mapping[str, object]
) -> RunFingerprint:
    """Return everything that must be equal in all processes; `init_digest` is a hash of the initial model."""
    shards = json.dumps(corpus.tokens_manifest["shards"], sort_keys=True).encode()
    return {
        "recipe": dict(_flatten_settings(asdict(recipe))),
        "corpus": {
            "tokens": f"{corpus.tokens_manifest['counts']['tokens']:,}",
            "vocabulary": f"{corpus.tokenizer.vocab_size:,}",
            "sha256": hashlib.sha256(shards).hexdigest()[:12],
        },
        "initial model": {"weights": init_digest},
        "options": {name: str(value) for name, value in options.items()},
        "version": {
            "bertworks": _source_hash(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def check_consistency(fingerprint: RunFingerprint) -> None:
    """Compare the fingerprints of all processes; each raises the same error if they differ."""
    message = json.dumps({"node": _node_name(), "fingerprint": fingerprint})
    first, *others = (json.loads(text) for text in all_gather(message))
    for part, remedy in _REMEDIES.items():
        for other in others:
            for name in {**first["fingerprint"][part], **other["fingerprint"][part]}:
                value, other_value = (process["fingerprint"][part].get(name, "missing") for process in (first, other))
                if value != other_value:
                    raise SettingsError(
                        f"the nodes do not run the same thing: {part}, {name} is {value} on {first['node']}, but "
                        f"{other_value} on {other['node']}; {remedy}"
                    )


def _flatten_settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a recipe by its dotted name."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value, default=str)


def _node_name() -> str:
    """Return the host name, with torchrun's number of the node if there is one: host names may repeat."""
    number = os.environ.get("GROUP_RANK")
    return socket.gethostname() if number is None else f"node {number} ({socket.gethostname()})"


def _source_hash() -> str:
    """Return a hash of this package's source files: two installations of one version may still differ."""
    folder = Path(bertworks.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
