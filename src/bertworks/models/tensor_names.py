"""Foreign names and ours: tensors under Hugging Face's names in, a module's under ours out, and back without loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bertworks.encoders.tensor_names import NameTable, is_transposed, strip_mark
from bertworks.errors import FolderError


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of each tensor when weights met a module, all under Hugging Face's names.

    `loaded` were found and taken; `newly_initialised` were not found, so the module kept its own; `unused` were found
    but have no place in the module.
    """

    loaded_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]


def combine_name_tables(parts: Mapping[str, NameTable]) -> dict[str, tuple[str, ...]]:
    """Return one table for a module of several parts: {"encoder": table, "masked": table} -> "encoder.norm.bias"."""
    return {f"{part}.{ours}": theirs for part, table in parts.items() for ours, theirs in table.items()}


def from_hf_names(tensors: Mapping[str, torch.Tensor], names: NameTable) -> dict[str, torch.Tensor]:
    """Return our tensors: theirs, stacked row under row where ours is made of several. All must be there."""
    return {ours: _concatenate(tensors, theirs) for ours, theirs in names.items()}


def to_hf_names(state: Mapping[str, torch.Tensor], names: NameTable) -> dict[str, torch.Tensor]:
    """Return theirs: ours, cut into equal bands of rows where they have several. They share ours' memory."""
    found: dict[str, torch.Tensor] = {}
    for ours, theirs in names.items():
        bands = state[ours].chunk(len(theirs)) if len(theirs) > 1 else (state[ours],)  # a single number has no rows
        for name, values in zip(theirs, bands, strict=True):
            found[strip_mark(name)] = values.t() if is_transposed(name) else values
    return found


def load_into(module: nn.Module, tensors: Mapping[str, torch.Tensor], names: NameTable) -> LoadReport:
    """Put weights into a module, in its own precision. A parameter on the "meta" device becomes a real one.

    What the tensors lack stays as it is; of a parameter that is made of several, all or none must be there.
    """
    loaded: list[str] = []
    missing: list[str] = []
    for ours, theirs in names.items():
        there = [strip_mark(name) for name in theirs]
        present = [name for name in there if name in tensors]
        if not present:
            missing += there
            continue
        if len(present) < len(theirs):
            lacking = next(name for name in there if name not in tensors)
            raise FolderError(f"tensor '{present[0]}' is there but '{lacking}' is not; bring the whole model")
        _assign_tensor(module, ours, there, _concatenate(tensors, theirs))
        loaded += there
    taken = set(loaded)
    return LoadReport(tuple(loaded), tuple(missing), tuple(name for name in tensors if name not in taken))


def _assign_tensor(module: nn.Module, name: str, hf_names: Sequence[str], values: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    parameter: torch.Tensor = getattr(owner, last)  # or a table that is told and not learned
    if values.shape != parameter.shape:
        bands = f"'{hf_names[0]}'" if len(hf_names) == 1 else f"'{hf_names[0]}' and {len(hf_names) - 1} more, stacked,"
        raise FolderError(
            f"tensor {bands} should be {tuple(parameter.shape)}, but is {tuple(values.shape)}; "
            f"bring weights of the same sizes as the model"
        )
    if parameter.is_meta:
        # A copy, for what was read may be a view into the file that somebody writes anew.
        real = values.detach().to(dtype=parameter.dtype, copy=True, memory_format=torch.contiguous_format)
        is_learned = isinstance(parameter, nn.Parameter)
        setattr(owner, last, nn.Parameter(real, requires_grad=parameter.requires_grad) if is_learned else real)
    else:
        with torch.no_grad():
            parameter.copy_(values)


def _concatenate(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> torch.Tensor:
    parts = [tensors[strip_mark(name)].t() if is_transposed(name) else tensors[name] for name in names]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
