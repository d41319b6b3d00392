"""The pieces' vectors of a text in, one vector out; a sentence-transformers folder in, what it says about that out.

A text may lie in several rows. Each row gives its share, and the shares are joined: the mean and the maximum of all
pieces, each of them once; of first pieces, of which every row has one, the mean.

T places of a row, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.disk import read_json
from bertworks.errors import FolderError, SettingsError


@dataclass(frozen=True, slots=True)
class PoolingKind:
    """`share`: a row (T, D) and which of its places count for the text -> (D,).

    `join`: the shares of a text (rows, D) and how many places counted in all -> (D,).
    """

    pool: Callable[[torch.Tensor, slice], torch.Tensor]
    combine: Callable[[torch.Tensor, int], torch.Tensor]


POOLINGS: dict[str, PoolingKind] = {
    "mean": PoolingKind(lambda row, kept: row[kept].sum(0), lambda shares, count: shares.sum(0) / count),
    "first": PoolingKind(lambda row, kept: row[0], lambda shares, count: shares.mean(0)),
    "max": PoolingKind(lambda row, kept: row[kept].amax(0), lambda shares, count: shares.amax(0)),
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the pieces of a text become one vector: `kinds` side by side, then scaled to length 1 if `normalise`.

    `length` is the longest row that the model was made for, in pieces; `prompt` stands before every text; `told` says
    whether the model's folder asked for this, or nobody did.
    """

    kinds: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    is_explicit: bool = False

    def with_kind(self, kind: str) -> Pooling:
        """Return the same with another kind of pooling."""
        if kind not in POOLINGS:
            raise SettingsError(f"there is no pooling '{kind}'; choose one of: {', '.join(POOLINGS)}")
        return replace(self, kinds=(kind,), is_explicit=True)

    def prepare_text(self, text: str) -> str:
        """Return the text as the model wants it."""
        text = self.prompt + text
        return text.lower() if self.lower_case else text

    def pool(self, hidden_states: torch.Tensor, positions: slice) -> torch.Tensor:
        """Return (kinds, D): what a row (T, D) contributes to its text by the places that count."""
        return torch.stack([POOLINGS[kind].pool(hidden_states, positions) for kind in self.kinds])

    def combine(self, partials: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        """Return (kinds * D,): the vector of a text from the shares of its rows, in which `count` places counted."""
        stacked = torch.stack(tuple(partials))  # (rows, kinds, D)
        joined = [POOLINGS[kind].combine(stacked[:, place], count) for place, kind in enumerate(self.kinds)]
        vector = torch.cat(joined)
        return F.normalize(vector, dim=0) if self.normalize else vector


# What sentence-transformers calls them; in its older files each is a switch of its own, joined in this order.
_SENTENCE_TRANSFORMERS_KINDS = {"cls": "first", "max": "max", "mean": "mean"}
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(folder: Path) -> Pooling:
    """Return what a sentence-transformers folder says; for any other folder the mean, and that nobody asked for it."""
    if not (folder / "modules.json").is_file():
        return Pooling()
    modules = read_json(folder / "modules.json", "a sentence-transformers model")
    kinds: tuple[str, ...] = ()
    normalise = False
    for module in _check_modules(modules, folder / "modules.json"):
        match str(module["type"]).rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                kinds = _read_kinds(folder / str(module["path"]) / "config.json")
            case "Normalize":
                normalise = True
            case other:
                raise FolderError(
                    f"{folder / 'modules.json'}: part '{other}' is not computed here, so the vectors would not be the "
                    f"model's own; choose a model of Transformer, Pooling and Normalize, or remove the file"
                )
    if not kinds:
        raise FolderError(f"{folder / 'modules.json'} has no Pooling; add it, or remove the file to get the mean")
    row = _read_settings(folder / "sentence_bert_config.json")
    length = row.get("max_seq_length") or _read_settings(folder / "tokenizer_config.json").get("model_max_length")
    return Pooling(
        kinds=kinds,
        normalize=normalise,
        max_length=length if isinstance(length, int) else None,  # tokenizers without a limit write 1e30
        lower_case=bool(row.get("do_lower_case")),
        prompt=_read_prompt(folder / "config_sentence_transformers.json"),
        is_explicit=True,
    )


def _check_modules(modules: Any, path: Path) -> list[dict[str, Any]]:
    if not isinstance(modules, list) or not all(
        isinstance(one, dict) and {"type", "path"} <= set(one) for one in modules
    ):
        raise FolderError(f"{path} should be a list of parts, each with type and path; bring the model's own")
    return modules


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = read_json(path, "a file of a sentence-transformers model")
    if not isinstance(found, dict):
        raise FolderError(f"{path} should hold settings in braces, but holds a {type(found).__name__}")
    return found


def _read_kinds(path: Path) -> tuple[str, ...]:
    settings = _read_settings(path)
    asked = settings.get("pooling_mode") or [name for switch, name in _SWITCHES.items() if settings.get(switch)]
    names = [asked] if isinstance(asked, str) else list(asked) or ["mean"]
    unknown = [str(name) for name in names if name not in _SENTENCE_TRANSFORMERS_KINDS]
    if unknown or not settings.get("include_prompt", True):
        what = f"pooling '{unknown[0]}'" if unknown else "pooling without the prompt"
        raise FolderError(f"{path} asks for {what}, which is not computed here; it should be cls, max or mean")
    return tuple(_SENTENCE_TRANSFORMERS_KINDS[name] for name in names)


def _read_prompt(path: Path) -> str:
    settings = _read_settings(path)
    name = settings.get("default_prompt_name")
    if name is None:
        return ""
    prompt = (settings.get("prompts") or {}).get(name)
    if not isinstance(prompt, str):
        raise FolderError(f"{path} names the prompt '{name}' as the usual one, but has none of that name; add it")
    return prompt
