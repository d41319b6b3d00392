"""A model is a folder: a path in, a ModelFolder out; config, tensors, tokenizer and what else is told in, a folder out.

It is what the Hugging Face ecosystem reads (config.json, model.safetensors, the tokenizer's files) and bertworks.json,
which holds what they have no place for: objective, task, labels, scores, recipe, versions.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import tokenizers
import torch

import bertworks
from bertworks.disk import explain_os_error, read_json, write_json
from bertworks.encoders.families import ENCODERS, Family, family_of, initialise_part, shapes_of
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.errors import FolderError, SettingsError
from bertworks.models.embedding_rows import EmbeddingResize, ResizedTensors, vocab_tensor_names
from bertworks.models.tensor_names import LoadReport, load_into
from bertworks.models.tf1 import import_release
from bertworks.models.weights import (
    READERS,
    StoredTensor,
    Weights,
    find_weights,
    normalize_names,
    open_weights,
    wrap_tensors,
    write_weights,
)
from bertworks.vocabulary.algorithms import NUM_ADDED_TOKENS
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelFolder:
    """A model as it lies on disk. `tensors` has Hugging Face's names and reads each one when it is asked for."""

    path: Path
    config: dict[str, Any]
    metadata: dict[str, Any]
    tensors: Mapping[str, torch.Tensor]

    @property
    def family(self) -> Family:
        return family_of(self.config["model_type"])

    @property
    def encoder_config(self) -> BertConfig:
        return self.family.config_from_dict(self.config)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the folder; refused if it makes pieces that the model does not know."""
        tokenizer = Tokenizer.load(self.path)
        if tokenizer.vocab_size > self.encoder_config.vocab_size:
            raise FolderError(
                f"{self.path}: the tokenizer has {tokenizer.vocab_size} pieces, but the model only {self.encoder_config.vocab_size}; "
                f"put the tokenizer of this model there"
            )
        return tokenizer


def read_folder(path: str | Path) -> ModelFolder:
    """Open a model: a folder of Hugging Face's kind, ours among them, or one of Google's TensorFlow 1 releases.

    Names, shapes and settings are checked here; the tensors themselves are read later.
    """
    path = Path(path)
    if not path.is_dir():
        raise FolderError(f"{path} is not a folder; give the folder of a model")
    file = find_weights(path)
    if file is not None:
        config, stored = _read_config(path / "config.json"), open_weights(file)
    elif (path / "bert_config.json").is_file():
        release = import_release(path)
        file, config = path / "bert_config.json", release.config
        stored = wrap_tensors(file, {name: torch.from_numpy(values) for name, values in release.tensors.items()})
    else:
        raise FolderError(
            f"{path} holds no weights that can be read; it should have one of {', '.join(READERS)}, or be a TensorFlow "
            f"release with bert_config.json"
        )
    config = _with_model_type(config, stored, path)
    try:
        family = family_of(config["model_type"])
        sizes = family.config_from_dict(config)
    except SettingsError as error:
        raise FolderError(f"{path / 'config.json'}: {error}") from None
    stored = normalize_names(stored, family, family.tensor_names(sizes))
    _check_shapes(file, stored, family, sizes)
    folder = ModelFolder(path, config, _read_metadata(path / "bertworks.json"), Weights(stored))
    return _with_special_token_rows(folder) if family.can_lack_special_tokens else folder


def _with_special_token_rows(folder: ModelFolder) -> ModelFolder:
    """Give the special pieces that a vocabulary was released without rows of their own: they begin in the middle of all
    others, and are learned with what the model is made for."""
    if not (folder.path / "tokenizer.json").is_file():
        return folder  # whoever needs a vocabulary is told so
    size, known = Tokenizer.load(folder.path).vocab_size, folder.encoder_config.vocab_size
    if size - known != NUM_ADDED_TOKENS:
        return folder
    rows = EmbeddingResize(size, known, dict.fromkeys(range(known, size), ()))
    tensors = ResizedTensors(folder.tensors, vocab_tensor_names(folder.family, folder.encoder_config), rows)
    return replace(folder, config={**folder.config, "vocab_size": size}, tensors=tensors)


def load_encoder(folder: ModelFolder, generator: torch.Generator | None = None) -> tuple[Encoder, LoadReport]:
    """Build the encoder of a folder and fill it. Parts that the folder lacks (a pooler) are drawn from `generator`."""
    family, sizes = folder.family, folder.encoder_config
    with torch.device("meta"):  # drawing weights only to overwrite them would take seconds
        encoder = family.build(sizes, None)
    report = load_into(encoder, folder.tensors, family.tensor_names(sizes))
    generator = generator or torch.Generator().manual_seed(0)
    for part in encoder.modules():
        if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
            part.to_empty(device="cpu", recurse=False)
            initialise_part(part, sizes, generator)
    encoder.attention = folder.metadata.get("reads", encoder.attention)
    return encoder, report


def write_folder(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
) -> None:
    """Write a model. `tensors` have Hugging Face's names; `told` is free and goes to bertworks.json.

    All files are written to a folder of their own first, so that a full disk leaves an older model there as it was.
    """
    path = Path(path)
    with _staging(path) as staged:
        write_weights(staged / "model.safetensors", tensors)
        family = family_of(config["model_type"])
        tokenizer.save(staged, family.padding_side)
        numbers = {key: getattr(tokenizer.specials, name) for key, name in family.special_ids.items()}
        write_json(staged / "config.json", {**numbers, **config})
        write_json(staged / "bertworks.json", {**metadata, "versions": versions()})


def versions() -> dict[str, str]:
    """The versions of what makes a model what it is."""
    parts = {"torch": torch, "tokenizers": tokenizers, "safetensors": safetensors, "numpy": np}
    return {"bertworks": bertworks.__version__, **{name: str(part.__version__) for name, part in parts.items()}}


@contextlib.contextmanager
def _staging(path: Path) -> Iterator[Path]:
    """Yield a new folder; when the block ends well, it becomes `path`, or its files replace those in `path`."""
    name = f".{path.name}.{os.getpid()}.part"
    staged = path / name if path.is_dir() else path.with_name(name)
    try:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        yield staged
        if staged.parent != path:
            staged.rename(path)
            return
        for file in sorted(staged.iterdir()):
            file.replace(path / file.name)
    except OSError as error:
        raise explain_os_error(error, path) from error
    except FolderError as error:  # name the place that was asked for, not the one beside it
        raise FolderError(str(error).replace(str(staged), str(path))) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path, "a model folder")
    if not isinstance(config, dict):
        raise FolderError(f"{path} should hold settings in braces, but holds a {type(config).__name__}")
    return config


def _read_metadata(path: Path) -> dict[str, Any]:
    return _read_config(path) if path.is_file() else {}


def _with_model_type(config: dict[str, Any], entries: Mapping[str, StoredTensor], path: Path) -> dict[str, Any]:
    """Add the model_type where an old config.json has none and the names of the tensors tell it."""
    if "model_type" in config:
        return config
    for model_type, family in ENCODERS.items():
        if any(name.startswith(family.prefix) for name in entries):
            return {"model_type": model_type, **config}
    raise FolderError(f"{path / 'config.json'} has no model_type; add one of: {', '.join(ENCODERS)}")


def _check_shapes(file: Path, entries: Mapping[str, StoredTensor], family: Family, config: BertConfig) -> None:
    """Refuse weights that lack a part of the encoder, or have a tensor of another shape than the config says."""
    expected = shapes_of(family, config)
    missing = [name for name in expected if name not in entries and not name.startswith(family.optional_prefixes)]
    if missing:
        raise FolderError(
            f"{file} lacks {len(missing)} tensors of the encoder that config.json asks for, first of all "
            f"'{missing[0]}'; it is of another kind of model, or the config is of another model"
        )
    for name, shape in expected.items():
        if name in entries and entries[name].shape != shape:
            raise FolderError(
                f"{entries[name].file}: tensor '{name}' should be {shape} by config.json, but is {entries[name].shape}; "
                f"put the config.json of these weights beside them"
            )
