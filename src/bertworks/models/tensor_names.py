"""Tensor names: tensors under Hugging Face's names in, those of our modules out, and back without loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from bertworks.encoders.tensor_names import NameTable, is_transposed, strip_mark
from bertworks.errors import FolderError
from bertworks.models.load_report import LoadReport


def combine_name_tables(parts: Mapping[str, NameTable]) -> dict[str, tuple[str, ...]]:
    """Return one table for a module with several children: {"encoder": table, "mlm": table} -> "encoder.norm.bias"."""
    return {f"{part}.{ours}": theirs for part, table in parts.items() for ours, theirs in table.items()}


def from_hf_names(tensors: Mapping[str, torch.Tensor], names: NameTable) -> dict[str, torch.Tensor]:
    """Return tensors under our names; several of theirs may form one of ours (fused QKV). All must exist."""
    return {ours: _concatenate(tensors, theirs) for ours, theirs in names.items()}


def to_hf_names(state: Mapping[str, torch.Tensor], names: NameTable) -> dict[str, torch.Tensor]:
    """Return tensors under Hugging Face's names, fused ones split again; they share memory with ours."""
    tensors: dict[str, torch.Tensor] = {}
    for ours, theirs in names.items():
        chunks = state[ours].chunk(len(theirs)) if len(theirs) > 1 else (state[ours],)  # scalars cannot be chunked
        for name, values in zip(theirs, chunks, strict=True):
            tensors[strip_mark(name)] = values.t() if is_transposed(name) else values
    return tensors


def load_into(module: nn.Module, tensors: Mapping[str, torch.Tensor], names: NameTable) -> LoadReport:
    """Load weights into a module, in the dtype of its parameters; those on the meta device are materialized.

    Missing tensors leave parameters unchanged; of the tensors of a fused parameter, all or none must exist.
    """
    loaded: list[str] = []
    missing: list[str] = []
    for ours, theirs in names.items():
        hf_names = [strip_mark(name) for name in theirs]
        present = [name for name in hf_names if name in tensors]
        if not present:
            missing += hf_names
            continue
        if len(present) < len(theirs):
            absent = next(name for name in hf_names if name not in tensors)
            raise FolderError(f"tensor '{present[0]}' exists but '{absent}' does not; use the complete model")
        _assign_tensor(module, ours, hf_names, _concatenate(tensors, theirs))
        loaded += hf_names
    loaded_keys = set(loaded)
    return LoadReport(tuple(loaded), tuple(missing), tuple(name for name in tensors if name not in loaded_keys))


def _assign_tensor(module: nn.Module, name: str, hf_names: Sequence[str], values: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    parameter: torch.Tensor = getattr(owner, last)  # or a buffer
    if values.shape != parameter.shape:
        suffix = "" if len(hf_names) == 1 else f" (concatenated with {len(hf_names) - 1} more)"
        raise FolderError(
            f"tensor '{hf_names[0]}'{suffix} should have shape {tuple(parameter.shape)}, but has "
            f"{tuple(values.shape)}; use weights that fit the config of the model"
        )
    if parameter.is_meta:
        # A copy: the tensor may be a memory map of a file that is overwritten later.
        new_values = values.detach().to(dtype=parameter.dtype, copy=True, memory_format=torch.contiguous_format)
        is_parameter = isinstance(parameter, nn.Parameter)
        setattr(
            owner, last, nn.Parameter(new_values, requires_grad=parameter.requires_grad) if is_parameter else new_values
        )
    else:
        with torch.no_grad():
            parameter.copy_(values)


def _concatenate(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> torch.Tensor:
    parts = [tensors[strip_mark(name)].t() if is_transposed(name) else tensors[name] for name in names]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
