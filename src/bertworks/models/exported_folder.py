"""Exported folders: a path in, an ExportedFolder out: config, metadata, sizes, tokenizer; the weights are in a graph.

An export records the sizes of its graph and its task in bertworks.json, so that no code of its family is needed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.errors import FolderError
from bertworks.integrity.model_files import METADATA_FILE
from bertworks.models.graph_config import GraphConfig
from bertworks.models.metadata import read_config
from bertworks.settings import from_table
from bertworks.vocabulary.tokenizer import Tokenizer

# The key of bertworks.json.
GRAPH = "graph"


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """An exported model on disk. `metadata` is bertworks.json without the hashes.

    split_special_tokens   as in `Tokenizer.load`
    """

    path: Path
    config: dict[str, Any]
    metadata: dict[str, Any]
    encoder_config: GraphConfig
    split_special_tokens: bool = True

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder; refused if it has more tokens than the model has embeddings."""
        tokenizer = Tokenizer.load(self.path, split_special_tokens=self.split_special_tokens)
        check_vocab_size(self.path, tokenizer, self.encoder_config.vocab_size)
        return tokenizer


def check_vocab_size(path: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer with more tokens than a model has embeddings."""
    if tokenizer.vocab_size > vocab_size:
        raise FolderError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {vocab_size}; use the "
            f"tokenizer of this model"
        )


def read_exported_folder(path: Path, metadata: dict[str, Any], split_special_tokens: bool = True) -> ExportedFolder:
    """Open an exported folder; `metadata` is its bertworks.json, which records the graph."""
    graph_config = from_table(GraphConfig, metadata[GRAPH], f"{path / METADATA_FILE}, {GRAPH}")
    return ExportedFolder(
        path=path,
        config=read_config(path / "config.json"),
        metadata=metadata,
        encoder_config=graph_config,
        split_special_tokens=split_special_tokens,
    )
