"""Model folders: a path in, a ModelFolder out; config, tensors, tokenizer and metadata in, a folder out.

A folder has the files of the Hugging Face ecosystem (config.json, model.safetensors, the tokenizer's files) and
bertworks.json for metadata that those have no place for: objective, task, labels, scores, recipe, versions, and the
hashes of all files, which are checked when the folder is opened.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import tokenizers
import torch

import bertworks
from bertworks.disk import write_bytes, write_json, write_text
from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.encoder import Encoder, init_weights
from bertworks.encoders.families import family_of, shapes_of
from bertworks.encoders.family import Family
from bertworks.encoders.tensor_names import strip_mark
from bertworks.errors import FolderError, SettingsError
from bertworks.integrity.model_files import is_as_written, staged_model_folder, write_metadata
from bertworks.models.card import CARD, card_text
from bertworks.models.embedding_rows import EmbeddingResize, ResizedTensors, vocab_tensor_names
from bertworks.models.exported_folder import check_vocab_size
from bertworks.models.folder_sources import FolderSource, open_source
from bertworks.models.load_report import LoadReport
from bertworks.models.metadata import read_metadata
from bertworks.models.next_sentence import as_classifier_config, as_classifier_tensors
from bertworks.models.tensor_names import load_into
from bertworks.models.weights import StoredTensor, Weights, normalize_names, untied_output, write_weights
from bertworks.reading import check_path
from bertworks.vocabulary.algorithms import NUM_ADDED_TOKENS
from bertworks.vocabulary.special_tokens import SpecialTokenTemplate
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.vocabulary_files import find_vocabulary

_LAYER_NUMBER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk. `tensors` have Hugging Face's names and are read on access; `metadata` is bertworks.json
    without the hashes.

    split_special_tokens        as in `Tokenizer.load`
    has_untrained_specials      whether embeddings of special tokens were added to those of the folder
    template                    another layout of special tokens than that of the vocabulary
    source                      where config and tensors are from, if they are on disk
    """

    path: Path
    config: dict[str, Any]
    metadata: dict[str, Any]
    tensors: Mapping[str, torch.Tensor]
    split_special_tokens: bool = field(default=True, kw_only=True)
    has_untrained_specials: bool = field(default=False, kw_only=True)
    template: SpecialTokenTemplate | None = field(default=None, kw_only=True)
    source: FolderSource | None = field(default=None, kw_only=True)

    @property
    def family(self) -> Family:
        return family_of(self.config["model_type"])

    @property
    def encoder_config(self) -> EncoderConfig:
        return self.family.config_from_dict(self.config)

    @property
    def tokenizer_path(self) -> Path:
        """Where the files of the tokenizer are: those of an adapter may be in the folder of its base model."""
        return self.path if self.source is None else self.source.tokenizer_path

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder; refused if it has more tokens than the model has embeddings."""
        is_static = self.source is not None and self.source.is_static
        path = self.tokenizer_path
        tokenizer = Tokenizer.load(path, split_special_tokens=self.split_special_tokens, require_specials=not is_static)
        check_vocab_size(self.path, tokenizer, self.encoder_config.vocab_size)
        _check_padding_id(self.path, tokenizer, self.encoder_config)
        return tokenizer if self.template is None else tokenizer.with_template(self.template)


def _check_padding_id(path: Path, tokenizer: Tokenizer, config: EncoderConfig) -> None:
    """Refuse a model that counts positions from the id of padding plus one if that is the id of another special token:
    transformers does not count that token."""
    padding_id, specials = config.first_position - 1, tokenizer.specials
    if padding_id in (specials.cls, specials.sep):
        raise FolderError(
            f"{path / 'config.json'}: pad_token_id is {padding_id}, but that is '{tokenizer.tokens[padding_id]}' in "
            f"the vocabulary; positions are counted from the id of padding, so correct it"
        )


def check_tied(folder: ModelFolder) -> None:
    """Refuse to train a masked LM whose output embeddings are not tied: our head would take the token embeddings."""
    name = untied_output(folder.family, folder.tensors)
    if name is not None:
        raise FolderError(
            f"{folder.path}: '{name}' is not tied to the token embeddings, and such a masked LM cannot be trained "
            f"further here; fine-tune it for a task, or choose another model"
        )


def read_folder(path: str | Path) -> ModelFolder:
    """Open a model folder: of the Hugging Face ecosystem, ours included, or one of Google's TensorFlow 1 releases; see
    `folder_sources`.

    Files are compared with the hashes of the folder, if it has them. The config and the names and shapes of tensors are
    checked; values are read later.
    """
    path = Path(path)
    check_path(path)
    if not path.is_dir():
        raise FolderError(f"{path} is not a folder; give the folder of a model")
    metadata = read_metadata(path)
    source = open_source(path)
    config = source.config
    try:
        family = family_of(config["model_type"])
        encoder_config = family.config_from_dict(config)
    except SettingsError as error:
        raise FolderError(f"{path / 'config.json'}: {error}") from None
    entries = normalize_names(source.entries, family, family.tensor_names(encoder_config))
    entries, config = as_classifier_tensors(entries, config, family), as_classifier_config(config, family)
    _check_shapes(source.file, entries, family, encoder_config)
    folder = ModelFolder(path, config, metadata, Weights(entries), source=source)
    return with_special_token_rows(folder) if family.can_lack_special_tokens else folder


def with_special_token_rows(folder: ModelFolder) -> ModelFolder:
    """Add embeddings for special tokens that a model was released without (GPT): the mean of all others, to be trained
    with the task."""
    if find_vocabulary(folder.tokenizer_path) is None:
        return folder  # loading the tokenizer will report it
    vocab_size, old_size = Tokenizer.load(folder.tokenizer_path).vocab_size, folder.encoder_config.vocab_size
    if vocab_size - old_size != NUM_ADDED_TOKENS:
        return folder
    resize = EmbeddingResize(vocab_size, old_size, dict.fromkeys(range(old_size, vocab_size), ()))
    tensors = ResizedTensors(folder.tensors, vocab_tensor_names(folder.family, folder.encoder_config), resize)
    config = {**folder.config, "vocab_size": vocab_size}
    return replace(folder, config=config, tensors=tensors, has_untrained_specials=True)


def load_encoder(folder: ModelFolder, generator: torch.Generator | None = None) -> tuple[Encoder, LoadReport]:
    """Build the encoder of a folder and load its weights. Missing parts (a pooler) are initialized by `generator`."""
    family, config = folder.family, folder.encoder_config
    with torch.device("meta"):  # random initialization of weights that are then overwritten would take seconds
        encoder = family.build(config, None)
    report = load_into(encoder, folder.tensors, family.tensor_names(config))
    if folder.source is not None:
        unexpected_keys = (*report.unexpected_keys, *folder.source.unexpected_keys)
        report = replace(report, unexpected_keys=unexpected_keys, notes=folder.source.notes)
    generator = generator or torch.Generator().manual_seed(0)
    for part in encoder.modules():
        if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
            part.to_empty(device="cpu", recurse=False)
            init_weights(part, config.initializer_range, generator)
    attention = folder.metadata.get("attention", encoder.attention)
    if attention not in encoder.supported_attention:
        raise FolderError(
            f"{folder.path / 'bertworks.json'}: attention is '{attention}', but a model of the family "
            f"'{family.model_type}' has only {', '.join(encoder.supported_attention)}; correct the file"
        )
    encoder.attention = attention
    return encoder, report


def write_folder(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    tokenizer: Tokenizer,
    metadata: Mapping[str, Any],
    other_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model folder. `tensors` have Hugging Face's names; `metadata` goes to bertworks.json; `other_files` are
    written as they are, by their name in the folder.

    Files are staged first, so that a full disk leaves an existing model unchanged.
    """
    with staged_model_folder(Path(path)) as staged:
        write_weights(staged / "model.safetensors", tensors)
        family = family_of(config["model_type"])
        tokenizer.save(staged, family.padding_side, family.has_token_types)
        special_ids = {key: getattr(tokenizer.specials, name) for key, name in family.special_ids.items()}
        write_json(staged / "config.json", {**special_ids, **config})
        if is_as_written(Path(path), CARD):  # not a card that somebody wrote
            write_text(staged / CARD, card_text(config, metadata, tokenizer))
        for name, content in (other_files or {}).items():
            (staged / name).parent.mkdir(exist_ok=True)
            write_bytes(staged / name, content)
        write_metadata(staged, {**metadata, "versions": versions()})


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a model depends on."""
    modules = {"torch": torch, "tokenizers": tokenizers, "safetensors": safetensors, "numpy": np}
    return {"bertworks": bertworks.__version__, **{name: str(module.__version__) for name, module in modules.items()}}


def _check_shapes(file: Path, entries: Mapping[str, StoredTensor], family: Family, config: EncoderConfig) -> None:
    """Refuse weights that lack tensors of the encoder, hold more layers, or have other shapes than the config says."""
    # By name first: nothing is built for a config of more layers than are stored.
    names = [strip_mark(name) for hf_names in family.tensor_names(config).values() for name in hf_names]
    missing = [name for name in names if name not in entries and not name.startswith(family.optional_prefixes)]
    if missing:
        raise FolderError(
            f"{file} lacks {len(missing)} tensors of the encoder that config.json describes, first of all "
            f"'{missing[0]}'; weights and config belong to different models"
        )
    expected_shapes = shapes_of(family, config)
    extra = _extra_layer_tensor(entries, expected_shapes)
    if extra is not None:
        raise FolderError(
            f"{entries[extra].file} holds '{extra}', a layer that the encoder of config.json does not have; use the "
            f"config.json of these weights"
        )
    for name, shape in expected_shapes.items():
        if name in entries and entries[name].shape != shape:
            raise FolderError(
                f"{entries[name].file}: tensor '{name}' should have shape {shape} by config.json, but has "
                f"{entries[name].shape}; use the config.json of these weights"
            )


def _extra_layer_tensor(entries: Mapping[str, StoredTensor], expected: Collection[str]) -> str | None:
    """Return the first tensor that has the name of an expected one but for the number of its layer."""
    patterns = {_LAYER_NUMBER.sub(".#.", name) for name in expected}
    return next((name for name in entries if name not in expected and _LAYER_NUMBER.sub(".#.", name) in patterns), None)
