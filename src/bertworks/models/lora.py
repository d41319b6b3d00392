"""LoRA adapters of PEFT: the folder of an adapter in, the weights of its base model with the adapter merged out.

A linear layer with the weight W (O, I) has the adapter A (R, I) and B (O, R): merged, it is W' = W + scale * B A, where
the scale is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora. DoRA (arXiv:2402.09353) also has a magnitude m
(O,): each row of W' is scaled to that length. Other tensors of the adapter, such as the head of a task, replace those
of the base model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
import torch

from bertworks.disk import read_json
from bertworks.encoders.families import CLASS_SUFFIXES
from bertworks.encoders.family import Family
from bertworks.errors import FolderError, show_value
from bertworks.models.weights import StoredTensor, read_tensors_of, wrap_tensors

ADAPTER_CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
# The module that a tensor belongs to, and which part of the adapter it is: A, B, embedding_A, embedding_B or
# magnitude_vector. The weight of an embedding (V, D) is the transpose of that of a linear layer.
_LORA_NAME = re.compile(
    r"(?P<module>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B|magnitude_vector)(\.default)?(\.weight)?"
)
# More than any rank or alpha; and the time for a pattern on a name, which may take steps without end.
_MAX_NUMBER, _MATCH_SECONDS = 1e6, 0.1
# PEFT's task types -> kinds of heads.
_HEADS = {"SEQ_CLS": "sequence", "TOKEN_CLS": "tokens", "QUESTION_ANS": "spans"}
# Settings that change the result, with the values that are merged here.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "lora_bias": (None, False),
    "use_qalora": (None, False),
    # These initializations change the weights of the base model, too.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(
        (
            "alora_invocation_tokens",
            "arrow_config",
            "kasa_config",
            "layer_replication",
            "monteclora_config",
            "trainable_token_indices",
            "use_bdlora",
        ),
        (None,),
    ),
    "target_parameters": (None, []),
}


@dataclass(frozen=True, slots=True)
class _Change:
    """What an adapter does to a weight: the matrix that is added, and with DoRA the length of each row after that.

    `axis` is that of the input of a row: 0 where the weight is stored transposed.
    """

    delta: torch.Tensor
    axis: int
    magnitude: torch.Tensor | None = None

    def apply(self, weight: torch.Tensor) -> torch.Tensor:
        merged = weight.float() + self.delta
        if self.magnitude is None:
            return merged
        scale = self.magnitude / torch.linalg.vector_norm(merged, dim=self.axis)
        return merged * scale.unsqueeze(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """An adapter: its folder, the name of its base model, its settings and tensors."""

    path: Path
    base: str
    settings: dict[str, Any]
    tensors: Mapping[str, StoredTensor]

    def merge(
        self,
        base: Mapping[str, StoredTensor],
        normalize: Callable[[Mapping[str, StoredTensor]], dict[str, StoredTensor]],
    ) -> dict[str, StoredTensor]:
        """Return the tensors of the base model with those of the adapter merged; `normalize` gives both one kind of
        names."""
        parts: dict[str, dict[str, torch.Tensor]] = {}
        others: dict[str, StoredTensor] = {}
        for name, entry in self.tensors.items():
            bare = name.removeprefix(_PREFIX).replace(".modules_to_save.default", "")
            match = _LORA_NAME.fullmatch(bare)
            if match is None:
                others[bare.replace(".base_layer.", ".")] = entry
            else:
                parts.setdefault(match["module"], {})[match["part"]] = entry.read().float()
        if not parts:
            raise FolderError(f"{self.path} has no matrices lora_A and lora_B; copy or download the adapter again")
        changes = {f"{module}.weight": self._change(module, part) for module, part in parts.items()}
        # Names are those of the matrices, which have the shapes of the weights.
        deltas = normalize(wrap_tensors(self.path, {name: change.delta for name, change in changes.items()}))
        by_name = dict(zip(deltas, changes.values(), strict=True))
        unknown = [name for name in by_name if name not in base]
        if unknown:
            raise FolderError(
                f"{self.path / ADAPTER_CONFIG}: the base model '{self.base}' has no tensor '{unknown[0]}' to merge the "
                f"adapter with; give its own base model"
            )
        merged = {name: self._merge(name, base[name], change) for name, change in by_name.items()}
        return {**base, **merged, **normalize(others)}

    def _change(self, module: str, parts: Mapping[str, torch.Tensor]) -> _Change:
        """Return scale * B A of a module, in the shape of its weight, and its magnitude."""
        is_embedding, use_dora = "embedding_A" in parts, bool(self.settings.get("use_dora"))
        names = ("embedding_A", "embedding_B") if is_embedding else ("A", "B")
        if parts.keys() != {*names, *(["magnitude_vector"] if use_dora else [])}:
            raise FolderError(f"{self.path}: the tensors of the adapter of '{module}' are not complete; copy it again")
        first, second = parts[names[0]], parts[names[1]]
        if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
            raise FolderError(f"{self.path}: the matrices lora_A and lora_B of '{module}' do not fit; copy it again")
        rank, alpha = (
            self._number_of("r", "rank_pattern", module),
            self._number_of("lora_alpha", "alpha_pattern", module),
        )
        if rank != len(first):
            raise FolderError(
                f"{self.path / ADAPTER_CONFIG}: the rank of '{module}' is {rank:g}, but its matrices have "
                f"{len(first)}; use the adapter's own file"
            )
        scale = alpha / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)
        product, magnitude = scale * (second @ first), parts.get("magnitude_vector")
        if magnitude is not None and magnitude.numel() != len(product):
            raise FolderError(f"{self.path}: the magnitude of '{module}' does not fit its matrices; copy it again")
        magnitude = None if magnitude is None else magnitude.flatten()
        if is_embedding or self.settings.get("fan_in_fan_out"):
            return _Change(product.t(), 0, magnitude)
        return _Change(product, 1, magnitude)

    def _number_of(self, key: str, pattern_key: str, module: str) -> float:
        """Return the rank or alpha of a module: that of the first pattern that its name ends with, or the default."""
        file, patterns = self.path / ADAPTER_CONFIG, self.settings.get(pattern_key) or {}
        if not isinstance(patterns, dict):
            raise FolderError(f"{file}: {pattern_key} must be a table of names; copy it again")
        values = (value for pattern, value in patterns.items() if _ends_with(file, pattern, module))
        value: Any = next(values, self.settings.get(key))
        if type(value) not in (int, float) or not 0 < value <= _MAX_NUMBER:
            raise FolderError(f"{file}: r and lora_alpha must be numbers above 0; copy it again")
        return float(value)

    def _merge(self, name: str, stored: StoredTensor, change: _Change) -> StoredTensor:
        if stored.shape != tuple(change.delta.shape):
            raise FolderError(
                f"{self.path}: the adapter of '{name}' has shape {tuple(change.delta.shape)}, but the weight of "
                f"'{self.base}' has {stored.shape}; give its own base model"
            )
        return StoredTensor(stored.file, stored.shape, lambda: change.apply(stored.read()))

    def config(self, base: dict[str, Any], family: Family, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
        """Return the config.json of the merged model: with the architecture of the adapter's task, and its labels."""
        config = dict(base)
        (embeddings,) = family.tensor_names(family.config_from_dict(base))["token_embeddings.weight"]
        config["vocab_size"] = tensors[embeddings].shape[0]  # the embeddings may be saved with rows for new tokens
        kind = _HEADS.get(str(self.settings.get("task_type")), "")
        if kind not in family.heads:
            return config
        config["architectures"] = [family.class_prefix + family.class_suffixes.get(kind, CLASS_SUFFIXES[kind])]
        (weight,) = family.heads[kind]["score.weight"]
        num_labels = tensors[weight].shape[0] if weight in tensors else 0
        if kind != "spans" and num_labels and len(base.get("id2label") or {}) != num_labels:
            config["id2label"] = {str(index): f"LABEL_{index}" for index in range(num_labels)}
        return config


def _ends_with(file: Path, pattern: str, module: str) -> bool:
    """Return whether the name of a module ends with a pattern of an adapter, as PEFT does."""
    try:
        return regex.fullmatch(rf"(.*\.)?({pattern})", module, timeout=_MATCH_SECONDS) is not None
    except (regex.error, TimeoutError, RecursionError, OverflowError) as error:
        raise FolderError(
            f"{file}: the pattern {show_value(pattern)} cannot be used ({error or type(error).__name__}); correct it"
        ) from None


def read_adapter(path: Path) -> LoraAdapter:
    """Open a PEFT folder; refuse what is no LoRA, or a kind of it that is not merged here."""
    file = path / ADAPTER_CONFIG
    settings = read_json(file, "the folder of a PEFT adapter")
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = show_value(settings.get("peft_type")) if isinstance(settings, dict) else "no object"
        raise FolderError(f"{file}: peft_type is {kind}, but only LORA adapters are merged; merge it with PEFT")
    for key, values in _SUPPORTED.items():
        if settings.get(key) not in values:
            value = show_value(settings[key])
            raise FolderError(f"{file}: {key} is {value}, which is not supported; merge the adapter with PEFT")
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise FolderError(f"{file} names no base model under base_model_name_or_path; add it")
    weights = next((path / name for name in _FILES if (path / name).is_file()), None)
    if weights is None:
        raise FolderError(f"{path} has no {' or '.join(_FILES)}; copy or download the adapter again")
    return LoraAdapter(path=path, base=base, settings=settings, tensors=read_tensors_of(weights))
