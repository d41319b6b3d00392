"""The formats of a model folder: a path in, the content of its config.json and its stored tensors out.

A folder holds weights for torch with a config.json (or Google's bert_config.json), a TensorFlow 1 release, the table of
a sentence-transformers StaticEmbedding, or a LoRA adapter, which is merged with the weights of its base model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertworks.encoders.families import ENCODERS, family_of
from bertworks.encoders.static import TABLE
from bertworks.errors import FolderError
from bertworks.models.lora import ADAPTER_CONFIG, read_adapter
from bertworks.models.metadata import read_config
from bertworks.models.sentence_files import MODULES_FILE, encoder_folder, read_modules, read_settings
from bertworks.models.tf1 import import_release
from bertworks.models.weight_files import find_weights
from bertworks.models.weights import (
    READERS,
    StoredTensor,
    normalize_names,
    open_weights,
    wrap_tensors,
)
from bertworks.vocabulary.vocabulary_files import find_vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """What a folder holds.

    file              the file that errors name
    config            the content of config.json, with a model_type
    entries           the tensors under the names in the file
    tokenizer_path    where the files of the tokenizer are
    unexpected_keys   tensors that nothing is made of
    notes             what is read otherwise than its name says
    is_static         whether it is a StaticEmbedding: its tokenizer may lack [CLS] and [SEP], which it never uses
    """

    file: Path
    config: dict[str, Any]
    entries: Mapping[str, StoredTensor]
    tokenizer_path: Path
    unexpected_keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_static: bool = False


def open_source(path: Path) -> FolderSource:
    """Open the files of a model folder in whichever format it has; those of an encoder may be in a folder of it."""
    if _is_adapter(path):
        return _open_adapter(path)
    folder, file = path, find_weights(path)
    static_path = find_static_module(path)
    if static_path is not None:
        return _open_static(static_path)
    if file is None:
        path = encoder_folder(path)
        file = find_weights(path)
    if file is not None:
        config, entries = read_config(_config_file(path)), open_weights(file)
        config = _with_model_type(config, entries, _config_file(path))
        return FolderSource(file=file, config=config, entries=entries, tokenizer_path=path)
    if (path / "bert_config.json").is_file():
        release = import_release(path)
        file = path / "bert_config.json"
        tensors = {name: torch.from_numpy(values) for name, values in release.tensors.items()}
        return FolderSource(
            file=file,
            config=release.config,
            entries=wrap_tensors(file, tensors),
            tokenizer_path=path,
            unexpected_keys=release.report.unexpected_keys,
            notes=release.report.notes,
        )
    _check_first_module(folder)
    if find_weights(path / "model") is not None:
        raise FolderError(f"{path} is the folder of a run; give that of its model: {path / 'model'}")
    raise FolderError(
        f"{path} has no weights; it needs one of {', '.join(READERS)}, or the files of a TensorFlow release with "
        f"bert_config.json"
    )


def _check_first_module(path: Path) -> None:
    """Refuse a sentence-transformers model without weights that begins with something else than an encoder."""
    module_type = next((str(module["type"]).rpartition(".")[2] for module in read_modules(path)), "Transformer")
    if module_type not in ("Transformer", "StaticEmbedding"):
        raise FolderError(
            f"{path / MODULES_FILE}: a model that begins with the module '{module_type}' is not supported; choose one "
            f"that begins with a Transformer or a StaticEmbedding"
        )


def find_static_module(path: Path) -> Path | None:
    """Return the folder of the StaticEmbedding of a sentence-transformers model; None if it has none."""
    modules = read_modules(path)
    if not modules or str(modules[0]["type"]).rpartition(".")[2] != "StaticEmbedding":
        return None
    folder = path / str(modules[0]["path"])
    return folder if find_weights(folder) is not None else None


def _open_static(path: Path) -> FolderSource:
    """Open a StaticEmbedding as static word vectors."""
    file = find_weights(path)
    assert file is not None
    stored = open_weights(file)
    if read_settings(path / "config.json").get("model_type") == "static":  # ours, that was fine-tuned from one
        config = read_config(path / "config.json")
        return FolderSource(file=file, config=config, entries=stored, tokenizer_path=path, is_static=True)
    name = next((name for name in ("embedding.weight", "embeddings") if name in stored), None)
    if name is None or len(stored[name].shape) != 2:
        raise FolderError(f"{file} has no matrix 'embedding.weight'; copy the model's own files")
    table = stored[name].read().float()
    if "mapping" in stored:  # model2vec: several tokens share a vector, and each token has a weight
        table = table[stored["mapping"].read().long()]
    if "weights" in stored:
        table = table * stored["weights"].read().float()[:, None]
    vocab_size, hidden_size = table.shape
    config = {"model_type": "static", "vocab_size": vocab_size, "hidden_size": hidden_size, "max_length": 512}
    return FolderSource(
        file=file, config=config, entries=wrap_tensors(file, {TABLE: table}), tokenizer_path=path, is_static=True
    )


def _is_adapter(path: Path) -> bool:
    return find_weights(path) is None and (path / ADAPTER_CONFIG).is_file()


def _open_adapter(path: Path) -> FolderSource:
    """Open the base model of a LoRA adapter, with the adapter merged into its weights."""
    from bertworks.models.hub import fetch  # only here: a local model needs no hub

    adapter = read_adapter(path)
    base_folder = fetch(adapter.base)
    if _is_adapter(base_folder):  # it could name this one
        raise FolderError(
            f"{path / ADAPTER_CONFIG}: the base model '{adapter.base}' is an adapter, too; merge that one with PEFT"
        )
    base = open_source(base_folder)
    family = family_of(base.config["model_type"])
    table = family.tensor_names(family.config_from_dict(base.config))
    entries = normalize_names(base.entries, family, table)
    merged = adapter.merge(entries, lambda stored: normalize_names(stored, family, table))
    has_tokenizer = find_vocabulary(path) is not None
    return FolderSource(
        file=path / ADAPTER_CONFIG,
        config=adapter.config(base.config, family, merged),
        entries=merged,
        tokenizer_path=path if has_tokenizer else base.tokenizer_path,
        unexpected_keys=base.unexpected_keys,
        notes=(*base.notes, f"the LoRA adapter is merged into the weights of {adapter.base}"),
    )


def _config_file(folder: Path) -> Path:
    """Return the config.json of a folder; the first conversions for PyTorch have Google's bert_config.json instead."""
    names = ("config.json", "bert_config.json")
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _with_model_type(config: dict[str, Any], entries: Mapping[str, StoredTensor], file: Path) -> dict[str, Any]:
    """Add the model_type to an old config file without one: by the prefix of the tensor names, or by its own name."""
    if "model_type" in config:
        return config
    for model_type, family in ENCODERS.items():
        if any(name.removeprefix("module.").startswith(family.prefix) for name in entries):
            return {"model_type": model_type, **config}
    if file.name == "bert_config.json":
        return {"model_type": "bert", **config}
    raise FolderError(f"{file} has no model_type; add one of: {', '.join(ENCODERS)}")
