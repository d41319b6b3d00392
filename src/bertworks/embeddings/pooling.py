"""Pooling: the token vectors of a text in, one vector out; a sentence-transformers folder in, its pooling settings out.

A text may have several windows. Each window gives a partial result, and the partial results are combined: the mean and
the maximum over all tokens, each counted once; for "first", the mean over the first tokens of the windows.

T positions of a window, W windows of a text, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.disk import read_json
from bertworks.errors import FolderError, SettingsError, show_value
from bertworks.reading import check_path


@dataclass(frozen=True, slots=True)
class PoolingKind:
    """One kind of pooling.

    pool      hidden states of a window (T, D), and the positions that count for the text -> partial result (D,)
    combine   partial results of all windows (W, D), and the number of positions that count -> (D,); or of N texts at
              once, (W, N, D) and (N, 1) -> (N, D)
    """

    pool: Callable[[torch.Tensor, slice], torch.Tensor]
    combine: Callable[[torch.Tensor, int | torch.Tensor], torch.Tensor]


POOLINGS: dict[str, PoolingKind] = {
    "mean": PoolingKind(
        lambda hidden_states, positions: hidden_states[positions].sum(0),
        lambda partials, count: partials.sum(0) / count,
    ),
    "first": PoolingKind(lambda hidden_states, positions: hidden_states[0], lambda partials, count: partials.mean(0)),
    "max": PoolingKind(
        lambda hidden_states, positions: hidden_states[positions].amax(0), lambda partials, count: partials.amax(0)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How the tokens of a text become one vector.

    kinds         the results of these kinds are concatenated
    normalize     scale the vector to length 1
    max_length    the maximum sequence length of the model
    prompt        is prepended to every text
    is_explicit   whether the model folder states the pooling, or it is the default
    """

    kinds: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompt: str = ""
    is_explicit: bool = False

    def with_kind(self, kind: str) -> Pooling:
        """Return the same settings with another kind of pooling."""
        if kind not in POOLINGS:
            raise SettingsError(f"there is no pooling '{kind}'; choose one of: {', '.join(POOLINGS)}")
        return replace(self, kinds=(kind,), is_explicit=True)

    def prepare_text(self, text: str) -> str:
        """Return the text with the prompt, in lower case if the model needs it."""
        text = self.prompt + text
        return text.lower() if self.lower_case else text

    def pool(self, hidden_states: torch.Tensor, positions: slice) -> torch.Tensor:
        """Return (kinds, D): the partial results of a window (T, D) over the positions that count."""
        return torch.stack([POOLINGS[kind].pool(hidden_states, positions) for kind in self.kinds])

    def combine_single(self, partials: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
        """Return (N, kinds * D): the vectors of N texts with one window each, which has that many positions."""
        stacked, positions = (
            torch.stack(tuple(partials))[None],
            torch.tensor(counts)[:, None],
        )  # (1, N, kinds, D), (N, 1)
        positions = positions.to(stacked.device)
        combined = [POOLINGS[kind].combine(stacked[:, :, index], positions) for index, kind in enumerate(self.kinds)]
        vectors = torch.cat(combined, 1)
        return F.normalize(vectors, dim=1) if self.normalize else vectors

    def combine(self, partials: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        """Return (kinds * D,): the vector of a text from the partial results of its windows over `count` positions."""
        stacked = torch.stack(tuple(partials))  # (windows, kinds, D)
        combined = [POOLINGS[kind].combine(stacked[:, index], count) for index, kind in enumerate(self.kinds)]
        vector = torch.cat(combined)
        return F.normalize(vector, dim=0) if self.normalize else vector


# The names in sentence-transformers; its older files have one switch per kind, concatenated in this order.
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
    """Return the pooling of a sentence-transformers folder; for any other folder the default, the mean."""
    if not (folder / "modules.json").is_file():
        return Pooling()
    modules = read_json(folder / "modules.json", "a sentence-transformers model")
    kinds: tuple[str, ...] = ()
    normalize = False
    for module in _check_modules(modules, folder / "modules.json"):
        match str(module["type"]).rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                kinds = _read_kinds(folder / str(module["path"]) / "config.json")
            case "Normalize":
                normalize = True
            case module_type:
                raise FolderError(
                    f"{folder / 'modules.json'}: module '{module_type}' is not supported, so the vectors would be "
                    f"wrong; choose a model of Transformer, Pooling and Normalize, or remove the file to use mean "
                    f"pooling"
                )
    if not kinds:
        raise FolderError(
            f"{folder / 'modules.json'} has no Pooling module; add it, or remove the file to use mean pooling"
        )
    settings = _read_settings(folder / "sentence_bert_config.json")
    max_length = settings.get("max_seq_length")
    max_length = max_length or _read_settings(folder / "tokenizer_config.json").get("model_max_length")
    return Pooling(
        kinds=kinds,
        normalize=normalize,
        max_length=max_length if isinstance(max_length, int) and max_length > 0 else None,  # 1e30 means no limit
        lower_case=bool(settings.get("do_lower_case")),
        prompt=_read_prompt(folder / "config_sentence_transformers.json"),
        is_explicit=True,
    )


def _check_modules(modules: Any, path: Path) -> list[dict[str, Any]]:
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and {"type", "path"} <= set(module) for module in modules
    ):
        raise FolderError(f"{path} must be a list of modules, each with type and path; copy the model's own file")
    return modules


def _read_settings(path: Path) -> dict[str, Any]:
    check_path(path)
    if not path.is_file():
        return {}
    settings = read_json(path, "a file of a sentence-transformers model")
    if not isinstance(settings, dict):
        raise FolderError(f"{path} must contain a JSON object, but contains a {type(settings).__name__}")
    return settings


def _read_kinds(path: Path) -> tuple[str, ...]:
    settings = _read_settings(path)
    modes = settings.get("pooling_mode") or [name for switch, name in _SWITCHES.items() if settings.get(switch)]
    names = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])] or ["mean"]
    unknown = [show_value(name) for name in names if name not in _SENTENCE_TRANSFORMERS_KINDS]
    if unknown or not settings.get("include_prompt", True):
        mode = f"pooling {unknown[0]}" if unknown else "pooling without the prompt"
        raise FolderError(f"{path} states {mode}, which is not supported; it must be cls, max or mean")
    return tuple(_SENTENCE_TRANSFORMERS_KINDS[name] for name in names)


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
