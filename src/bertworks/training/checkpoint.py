"""Checkpoints: a run's tensors and standing in, a folder with a hash manifest out, and back; whole or not there.

checkpoints/step-00001200/
  model.safetensors, optimizer.safetensors    every tensor by our own names
  standing.json                               step, time and pieces so far, and the recipe's hash
  manifest.json                               sha256 of the others; written last
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertworks.disk import explained, flush_folder, replacing, sha256, write_json
from bertworks.errors import FolderError
from bertworks.training.devices import Scaling
from bertworks.training.loop import Standing

_FILES = ("model.safetensors", "optimizer.safetensors", "standing.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read back."""

    folder: Path
    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    standing: Standing
    recipe: str


def save_checkpoint(
    folder: Path,
    model: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    standing: Standing,
    recipe: str,
) -> Path:
    """Write a checkpoint below `folder`, named by its step. A crash leaves either all of it or nothing to be found."""
    final = folder / f"step-{standing.step:08d}"
    part = folder / f".{final.name}.part"
    try:
        _remove(folder.glob(".step-*"))  # what a crash left behind
        part.mkdir(parents=True)
        for name, tensors in (("model.safetensors", model), ("optimizer.safetensors", optimizer)):
            with replacing(part / name) as temporary:
                save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, temporary)
        write_json(part / "standing.json", {**asdict(standing), "recipe": recipe})
        write_json(part / "manifest.json", {name: sha256(part / name) for name in _FILES})
        if final.exists():  # set aside in one go: a crash while it is being removed would leave half of it
            final.rename(folder / f".{final.name}.old")
        part.rename(final)
        flush_folder(folder)
        # A run goes back only behind checkpoints that are damaged; left there, they would count as the newest.
        _remove(path for path in checkpoints_in(folder) if path.name > final.name)
    except SafetensorError as error:
        raise FolderError(f"cannot write {final}: {error}; free some space and resume the run") from error
    except OSError as error:
        raise explained(error, final) from error
    finally:
        _remove(folder.glob(".step-*"))
    return final


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        shutil.rmtree(path, ignore_errors=True)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints below `folder`, oldest first; unfinished ones have another name."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, every byte checked; a damaged one is refused with the reason."""
    try:
        manifest: dict[str, str] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        for name in _FILES:
            if sha256(path / name) != manifest[name]:
                raise FolderError(f"checkpoint {path}: {name} is not what was written")
        told: dict[str, Any] = json.loads((path / "standing.json").read_text(encoding="utf-8"))
        recipe = told.pop("recipe")
        told["phase_steps"] = {int(phase): steps for phase, steps in told["phase_steps"].items()}
        told["scaling"] = Scaling(**told["scaling"])
        return Checkpoint(
            path,
            load_file(path / "model.safetensors"),
            load_file(path / "optimizer.safetensors"),
            Standing(**told),
            recipe,
        )
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise FolderError(f"checkpoint {path} is damaged: {error}") from error


def last_good(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and a sentence for each newer one that is not."""
    damaged: list[str] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            return load_checkpoint(path), damaged
        except FolderError as error:
            damaged.append(str(error))
    return None, damaged


def keep_last(folder: Path, count: int, also: set[str]) -> None:
    """Remove all but the newest `count` checkpoints and those named in `also`."""
    paths = checkpoints_in(folder)
    _remove(path for path in paths[: max(0, len(paths) - count)] if path.name not in also)
