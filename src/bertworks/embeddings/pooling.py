"""Pooling: the token vectors of a text in, one vector out; a sentence-transformers folder in, its pooling settings out.

A text may have several windows. Each window gives a partial result, and the partial results are combined: the mean and
the maximum over all tokens, each counted once; for "cls" and "lasttoken", the mean over these tokens of the windows.

T positions of a window, W windows of a text, D hidden size, N texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.choices import POOLING_ALIASES
from bertworks.embeddings.vector_modules import (
    NORMALIZE,
    VectorModule,
    check_sentence_module,
    normalize,
    read_dense,
    read_layer_norm,
)
from bertworks.errors import FolderError, InputError, SettingsError, show_value
from bertworks.models.sentence_files import (
    MODULES_FILE,
    PROMPTS_FILE,
    read_encoder_settings,
    read_max_length,
    read_modules,
)
from bertworks.models.sentence_files import read_settings as _read_settings
from bertworks.vocabulary.tokenizer import Tokenizer

Floats = npt.NDArray[np.float32]
Number = int | float | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PoolingKind:
    """One kind of pooling.

    pool      hidden states of a window (T, D), the positions that count for the text, the index in the text of the
              window's first position, and the position of "cls" -> partial result (D,)
    combine   partial results of all windows (W, D), the number of positions that count, and the index of the first of
              them -> (D,); or of N texts at once, (W, N, D) and (N, 1) -> (N, D)
    """

    pool: Callable[[Floats, slice, int, int], Floats]
    combine: Callable[[Floats, Number, int], Floats]


def _sum(hidden_states: Floats, positions: slice, offset: int, first: int) -> Floats:
    return hidden_states[positions].sum(0)


def _max(hidden_states: Floats, positions: slice, offset: int, first: int) -> Floats:
    counted = hidden_states[positions]
    return counted.max(0) if len(counted) else np.zeros_like(hidden_states[0])


def _first(hidden_states: Floats, positions: slice, offset: int, first: int) -> Floats:
    return hidden_states[first]


def _last(hidden_states: Floats, positions: slice, offset: int, first: int) -> Floats:
    return hidden_states[-1]


def _weighted_sum(hidden_states: Floats, positions: slice, offset: int, first: int) -> Floats:
    """Return the sum with weights 1, 2, 3, … from the beginning of the text on."""
    counted = hidden_states[positions]
    weights = np.arange(len(counted), dtype=counted.dtype) + (offset + positions.start + 1)
    return (counted * weights[:, None]).sum(0)


def _sum_of_weights(count: Number, first: int) -> Number:
    return count * first + count * (count + 1) / 2


def _at_least_one(count: Number) -> Number:
    """Return the count, 1 for a text without tokens, whose sum is 0."""
    return np.maximum(count, 1)


POOLINGS: dict[str, PoolingKind] = {
    "mean": PoolingKind(_sum, lambda partials, count, first: partials.sum(0) / _at_least_one(count)),
    "cls": PoolingKind(_first, lambda partials, count, first: partials.mean(0)),
    "max": PoolingKind(_max, lambda partials, count, first: partials.max(0)),
    "lasttoken": PoolingKind(_last, lambda partials, count, first: partials.mean(0)),
    "mean_sqrt_len_tokens": PoolingKind(
        _sum, lambda partials, count, first: partials.sum(0) / _at_least_one(count) ** 0.5
    ),
    "weightedmean": PoolingKind(
        _weighted_sum,
        lambda partials, count, first: partials.sum(0) / _sum_of_weights(_at_least_one(count), first),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How the tokens of a text become one vector.

    kinds            the results of these kinds are concatenated
    modules          what is applied to that vector: dense layers, norms
    normalize        scale the vector to length 1 after the modules
    truncate_dim     keep only this many components of the vector, after all else; the length is not 1 then
    max_length       the maximum sequence length of the model
    is_unlimited     whether the model has none, so that no text is truncated
    prompt           is prepended to every text
    include_prompt   whether the tokens of the prompt are pooled, too
    prompt_length    the number of positions of a prompt that is not pooled
    with_specials    whether special tokens are pooled, too
    is_explicit      whether the model folder states the pooling, or it is the default
    """

    kinds: tuple[str, ...] = ("mean",)
    modules: tuple[VectorModule, ...] = ()
    normalize: bool = False
    truncate_dim: int | None = None
    max_length: int | None = None
    is_unlimited: bool = False
    lower_case: bool = False
    prompt: str = ""
    include_prompt: bool = True
    prompt_length: int = 0
    with_specials: bool = True
    is_explicit: bool = False

    def with_kind(self, kind: str) -> Pooling:
        """Return the same settings with another kind of pooling."""
        kind = POOLING_ALIASES.get(kind, kind)
        if kind not in POOLINGS:
            raise SettingsError(f"there is no pooling '{kind}'; choose one of: {', '.join(POOLINGS)}")
        return replace(self, kinds=(kind,), is_explicit=True)

    def untruncated(self) -> Pooling:
        """Return the settings for whole vectors, of which a request wants a size of its own."""
        return replace(self, truncate_dim=None)

    def with_prompt(self, name: str, prompts: Mapping[str, str], tokenizer: Tokenizer) -> Pooling:
        """Return the same settings with another one of the prompts of the model."""
        if name not in prompts:
            raise InputError(f"the model has no prompt '{name}'; its prompts are: {', '.join(prompts) or 'none'}")
        return replace(self, prompt=prompts[name], prompt_length=0).for_tokenizer(tokenizer)

    def for_tokenizer(self, tokenizer: Tokenizer) -> Pooling:
        """Return the settings with the length of the prompt: as sentence-transformers counts it, all of its positions
        with special tokens but the last."""
        if self.include_prompt or not self.prompt:
            return self
        prompt = self.prompt.lower() if self.lower_case else self.prompt
        length = len(tokenizer.tokenize(prompt)) + tokenizer.num_special_tokens(1)
        return replace(self, prompt_length=max(0, length - 1))

    def prepare_text(self, text: str) -> str:
        """Return the text with the prompt, in lower case if the model needs it."""
        text = self.prompt + text
        return text.lower() if self.lower_case else text

    def first_position(self, length: int) -> int:
        """Return the first position of a text that is pooled, in its first window, which has that length."""
        return min(self.prompt_length, length - 1)

    def output_size(self, hidden_size: int) -> int:
        """Return the size of the vectors; raise FolderError if a module does not fit the encoder."""
        size = hidden_size * len(self.kinds)
        for module in self.modules:
            if module.input_size not in (None, size):
                raise FolderError(
                    f"{module.name} takes vectors of size {module.input_size}, but gets {size}; use the modules of "
                    f"this model, and its own pooling"
                )
            size = module.output_size or size
        return min(size, self.truncate_dim or size)

    def pool(self, hidden_states: Floats, positions: slice, offset: int = 0) -> Floats:
        """Return (kinds, D): the partial results of a window (T, D) over the positions that count.

        `offset` is the index in the text of the window's first position.
        """
        first = 0 if offset else self.first_position(len(hidden_states))
        return np.stack([POOLINGS[kind].pool(hidden_states, positions, offset, first) for kind in self.kinds])

    def combine_single(self, partials: Sequence[Floats], counts: Sequence[int]) -> Floats:
        """Return (N, vector size): the vectors of N texts with one window each, which has that many positions."""
        stacked = np.stack(tuple(partials))[None]  # (1, N, kinds, D)
        positions = np.array(counts)[:, None]  # (N, 1)
        return self._finish(
            np.concatenate(
                [
                    POOLINGS[kind].combine(stacked[:, :, index], positions, self.prompt_length)
                    for index, kind in enumerate(self.kinds)
                ],
                1,
            )
        )

    def combine(self, partials: Sequence[Floats], count: int) -> Floats:
        """Return (vector size,): the vector of a text from the partial results of its windows over `count`
        positions."""
        stacked = np.stack(tuple(partials))  # (windows, kinds, D)
        combined = [
            POOLINGS[kind].combine(stacked[:, index], count, self.prompt_length)
            for index, kind in enumerate(self.kinds)
        ]
        return self._finish(np.concatenate(combined)[None])[0]

    def _finish(self, vectors: Floats) -> Floats:
        """Apply the modules, the normalization and the truncation to vectors (N, D)."""
        vectors = vectors.astype(np.float32, copy=False)
        for module in self.modules:
            vectors = module.apply(vectors)
        return (normalize(vectors) if self.normalize else vectors)[:, : self.truncate_dim]


# Older files of sentence-transformers have one switch per kind; the results are concatenated in this order.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Modules that leave vectors as they are when a model is used.
_NEUTRAL_MODULES = ("Transformer", "Dropout")
_VECTOR_MODULES = {"Dense": read_dense, "LayerNorm": read_layer_norm}


def read_pooling(folder: str | Path) -> Pooling:
    """Return the pooling of a sentence-transformers folder; for any other folder the default, the mean, with the
    maximum length of its tokenizer."""
    folder = Path(folder)
    modules = read_modules(folder)
    if not modules or _read_settings(folder / PROMPTS_FILE).get("model_type") == "CrossEncoder":  # it has no vectors
        return Pooling(max_length=read_max_length(folder))
    pooling = Pooling(
        kinds=(),
        max_length=read_max_length(folder),
        lower_case=bool(read_encoder_settings(folder).get("do_lower_case")),
        prompt=_read_prompt(folder / PROMPTS_FILE),
        truncate_dim=_read_truncate_dim(folder / PROMPTS_FILE),
        is_explicit=True,
    )
    for module in modules:
        pooling = _add_module(pooling, folder, str(module["type"]).rpartition(".")[2], folder / str(module["path"]))
    if not pooling.kinds:
        raise FolderError(
            f"{folder / MODULES_FILE} has no Pooling module; add it, or remove the file to use mean pooling"
        )
    return pooling


def _add_module(pooling: Pooling, folder: Path, module_type: str, path: Path) -> Pooling:
    """Return the settings with one more module of modules.json."""
    if module_type in _NEUTRAL_MODULES:
        return pooling
    if module_type == "StaticEmbedding":  # pools by itself: the mean of the vectors of the text
        return replace(pooling, kinds=("mean",), with_specials=False, is_unlimited=True)
    if module_type == "Pooling":
        settings = _read_settings(path / "config.json")
        if not (path / "config.json").is_file():
            raise FolderError(f"{path} has no config.json, which states the pooling; copy the model's own files")
        include_prompt = bool(settings.get("include_prompt", True))
        return replace(pooling, kinds=_read_kinds(settings, path / "config.json"), include_prompt=include_prompt)
    if module_type == "Normalize":
        check_sentence_module(path, module_type)
        return replace(pooling, normalize=True)
    if module_type in _VECTOR_MODULES:  # a Normalize before it is one of the modules, too
        modules = (*pooling.modules, *([NORMALIZE] if pooling.normalize else []), _VECTOR_MODULES[module_type](path))
        return replace(pooling, modules=modules, normalize=False)
    raise FolderError(
        f"{folder / MODULES_FILE}: module '{module_type}' is not supported, so the vectors would be wrong; choose a "
        f"model of Transformer, Pooling, {', '.join(_VECTOR_MODULES)} and Normalize, or remove the file to use mean "
        f"pooling"
    )


def _read_kinds(settings: dict[str, Any], path: Path) -> tuple[str, ...]:
    for switch, is_on in settings.items():
        if switch.startswith("pooling_mode_") and switch not in _SWITCHES and is_on:
            raise FolderError(f"{path} states {switch}, which is not supported; it may have: {', '.join(_SWITCHES)}")
    modes = settings.get("pooling_mode") or [name for switch, name in _SWITCHES.items() if settings.get(switch)]
    names = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])] or ["mean"]
    unknown = [show_value(name) for name in names if name not in POOLINGS]
    if unknown:
        known = ", ".join(POOLINGS)
        raise FolderError(f"{path} states pooling {unknown[0]}, which is not supported; it must be one of: {known}")
    return tuple(names)


def _read_prompt(path: Path) -> str:
    settings = _read_settings(path)
    name = settings.get("default_prompt_name")
    if name is None:
        return ""
    prompts = settings.get("prompts")
    prompt = prompts.get(str(name)) if isinstance(prompts, dict) else None
    if not isinstance(prompt, str):
        raise FolderError(f"{path} has the default prompt {show_value(name)}, but no prompt of that name; add it")
    return prompt


def _read_truncate_dim(path: Path) -> int | None:
    size = _read_settings(path).get("truncate_dim")
    if size is not None and (type(size) is not int or size < 1):
        raise FolderError(f"{path}: truncate_dim is {show_value(size)}; it must be a number of components, or null")
    return size
