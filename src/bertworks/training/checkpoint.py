"""Checkpoints: the tensors and the train state of a run in, a folder with a hash manifest out, and back.

checkpoints/step-00001200/
  model.safetensors, optimizer.safetensors    all tensors by our own names
  state.json                                  step, seconds and tokens so far, and the hash of the recipe
  manifest.json                               sha256 of the others; written last

Of a sharded module, each process writes a shard, such as model-00002-of-00008.safetensors, with its local rows of every
tensor. The rows of a tensor are in the order of the shards, so any number of processes can read the rows they need.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from bertworks.disk import as_os_error, atomic_write, explain_os_error, flush_folder, sha256, staged_folder, write_json
from bertworks.errors import FolderError
from bertworks.reading import parse_json, unreadable_reason
from bertworks.training.devices import LossScaler
from bertworks.training.loop import TrainState
from bertworks.training.optimizer import BertAdam

_KINDS = ("model", "optimizer")
_STATE, _MANIFEST = "state.json", "manifest.json"

# The name of a tensor -> the rows to read.
RowSelector = Callable[[str], slice]


def all_rows(name: str) -> slice:
    return slice(None)


def _single_process(text: str) -> list[str]:
    return [text]


@dataclass(frozen=True, slots=True)
class CheckpointProcessGroup:
    """The processes that write a checkpoint together. `all_gather` returns the texts of all of them, by rank."""

    rank: int = 0
    world_size: int = 1
    all_gather: Callable[[str], list[str]] = _single_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read."""

    folder: Path
    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    train_state: TrainState
    recipe: str


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint by its name."""
    return int(checkpoint.name.removeprefix("step-"))


def save_checkpoint(
    folder: Path,
    model: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    train_state: TrainState,
    recipe: str,
    process_group: CheckpointProcessGroup = CheckpointProcessGroup(),
) -> Path:
    """Write a checkpoint into `folder`, named by its step. After a crash it is either complete or absent.

    Every process of the group calls it with its own tensors; rank 0 creates the folder and completes it.
    """
    path = folder / checkpoint_name(train_state.step)
    complete = folder / f".{path.name}.complete"
    is_main = process_group.rank == 0
    tensors = dict(zip(_KINDS, (model, optimizer), strict=True))
    try:
        with contextlib.ExitStack() as stack:
            name = ""
            if is_main:
                _remove(folder.glob(".step-*"))  # left by a crash
                name = stack.enter_context(staged_folder(complete)).name
            staged = folder / process_group.all_gather(name)[0]
            if not staged.is_dir():
                raise FolderError(f"cannot write {staged}, which another node created; use a disk that all nodes share")
            hashes = process_group.all_gather(json.dumps(_write_tensors(staged, tensors, process_group)))
            if is_main:
                write_json(staged / _STATE, {**asdict(train_state), "recipe": recipe})
                manifest = {file: digest for shard in hashes for file, digest in json.loads(shard).items()}
                write_json(staged / _MANIFEST, manifest | {_STATE: sha256(staged / _STATE)})
        if is_main:
            _replace(complete, path)
    except SafetensorError as error:
        raise explain_os_error(as_os_error(error), path) from error
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        if is_main:
            _remove(folder.glob(".step-*"))
    return path


def _write_tensors(
    folder: Path, kinds: Mapping[str, Mapping[str, torch.Tensor]], process_group: CheckpointProcessGroup
) -> dict[str, str]:
    """Write the tensors of this process; return the hash of each file."""
    for kind, tensors in kinds.items():
        with atomic_write(folder / _file_name(kind, process_group.rank, process_group.world_size)) as temporary:
            save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, temporary)
    names = [_file_name(kind, process_group.rank, process_group.world_size) for kind in kinds]
    return {name: sha256(folder / name) for name in names}


def _file_name(kind: str, rank: int, world_size: int) -> str:
    return f"{kind}.safetensors" if world_size == 1 else f"{kind}-{rank + 1:05d}-of-{world_size:05d}.safetensors"


def _replace(complete: Path, path: Path) -> None:
    folder = path.parent
    if path.exists():  # renamed first: a crash during its removal would leave a part of it
        path.rename(folder / f".{path.name}.old")
    complete.rename(path)
    flush_folder(folder)
    # Later checkpoints exist only if the run skipped them as damaged; they would count as the newest.
    _remove(later for later in checkpoints_in(folder) if later.name > path.name)


def _remove(paths: Iterable[Path]) -> None:
    """Remove checkpoints; each is renamed first, so that a crash leaves no part of it under its name."""
    for path in list(paths):
        hidden = path if path.name.startswith(".") else path.with_name(f".{path.name}.removed")
        if hidden != path:
            shutil.rmtree(hidden, ignore_errors=True)
            path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first; incomplete ones have another name."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify and read a checkpoint; a damaged one is refused with the reason."""
    check_checkpoint(path)
    return read_checkpoint(path)


def check_checkpoint(path: Path) -> None:
    """Compare all files with the hashes of the manifest; refuse a damaged checkpoint with the reason."""
    with _report_damage(path):
        manifest = _read_manifest(path)
        for name in _file_names(manifest):
            if sha256(path / name) != manifest[name]:
                raise FolderError(f"checkpoint {path}: the hash of {name} differs from the manifest")


def read_checkpoint(path: Path, rows: RowSelector = all_rows) -> Checkpoint:
    """Read a checkpoint, of every tensor only the selected rows. Hashes are not verified."""
    with _report_damage(path):
        names = _file_names(_read_manifest(path))
        state: dict[str, Any] = parse_json((path / _STATE).read_text(encoding="utf-8"))
        recipe = state.pop("recipe")
        state["phase_steps"] = {int(phase): steps for phase, steps in state["phase_steps"].items()}
        state["loss_scaler"] = LossScaler(**state["loss_scaler"])
        model, optimizer = (
            _read_tensors([path / name for name in names if name.startswith(kind)], rows) for kind in _KINDS
        )
        return Checkpoint(folder=path, model=model, optimizer=optimizer, train_state=TrainState(**state), recipe=recipe)


@contextlib.contextmanager
def _report_damage(path: Path) -> Any:
    try:
        yield
    except FileNotFoundError as error:
        raise FolderError(f"checkpoint {path} is damaged: {Path(error.filename or path).name} is missing") from error
    except OSError as error:
        raise FolderError(f"checkpoint {path} cannot be read: {unreadable_reason(error)}") from error
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, SafetensorError) as error:
        raise FolderError(f"checkpoint {path} is damaged: {error}") from error


def _read_manifest(path: Path) -> dict[str, str]:
    manifest: dict[str, str] = parse_json((path / _MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _file_names(manifest: Mapping[str, str]) -> list[str]:
    """Return the files that must exist, by the number of shards in the manifest."""
    counts = [int(match[1]) for name in manifest if (match := re.search(r"-of-(\d+)\.", name))]
    num_shards = max(counts, default=1)
    if num_shards > max(1, len(manifest)):
        raise ValueError(f"the manifest lacks files of its {num_shards:,} shards")
    return [_file_name(kind, rank, num_shards) for kind in _KINDS for rank in range(num_shards)] + [_STATE]


def _read_tensors(files: Sequence[Path], rows: RowSelector) -> dict[str, torch.Tensor]:
    """Return the selected rows of every tensor in the shards."""
    with contextlib.ExitStack() as stack:
        shards_by_name: dict[str, list[Any]] = {}
        for file in files:
            shard = stack.enter_context(safe_open(file, "pt"))
            for name in shard.keys():  # noqa: SIM118 (it is no dict)
                shards_by_name.setdefault(name, []).append(shard)
        return {name: _read_rows(name, shards, rows(name)) for name, shards in shards_by_name.items()}


def _read_rows(name: str, shards: Sequence[Any], rows: slice) -> torch.Tensor:
    if rows == slice(None) and len(shards) == 1:
        return shards[0].get_tensor(name)
    slices, first_row = [], 0
    for shard in shards:
        tensor_slice = shard.get_slice(name)
        num_rows = tensor_slice.get_shape()[0]
        start = max((rows.start or 0) - first_row, 0)
        stop = num_rows if rows.stop is None else min(rows.stop - first_row, num_rows)
        if start < stop:
            slices.append(tensor_slice[start:stop])
        first_row += num_rows
    return torch.cat(slices) if slices else shards[0].get_tensor(name)[:0]


def find_latest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest undamaged checkpoint, and a message for each newer one that is damaged.

    If all are damaged, a FolderError: the run would begin again, and overwrite what may still be restored.
    """
    damaged: list[str] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            check_checkpoint(path)
        except FolderError as error:
            damaged.append(str(error))
        else:
            return path, damaged
    if damaged:
        raise FolderError(
            f"every checkpoint in {folder} is damaged ({damaged[0]}); restore one of them from a copy, or delete "
            f"{folder} to train again from the first step"
        )
    return None, damaged


def load_latest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Read the newest undamaged checkpoint; return it, and a message for each newer one that is damaged."""
    path, damaged = find_latest_checkpoint(folder)
    return None if path is None else read_checkpoint(path), damaged


def restore_latest_checkpoint(
    folder: Path, module: nn.Module, optimizer: BertAdam, digest: str
) -> tuple[TrainState | None, list[str]]:
    """Load the newest undamaged checkpoint of a single process into a module and its optimizer.

    Returns the train state, None without a checkpoint, and a message for each damaged one. `digest` is the hash of the
    data and settings that the checkpoint must have been made with.
    """
    checkpoint, damaged = load_latest_checkpoint(folder)
    if checkpoint is None:
        return None, damaged
    if checkpoint.recipe != digest:
        raise FolderError(f"{checkpoint.folder} was made with other data or settings; choose another --output")
    module.load_state_dict(dict(checkpoint.model))
    state = checkpoint.train_state
    optimizer.restore(checkpoint.optimizer, state.step - state.num_overflows)
    return state, damaged


def keep_last(folder: Path, count: int, keep_names: set[str]) -> None:
    """Remove all checkpoints but the newest `count` and those in `keep_names`, and what a crash left of removed ones.

    A run that resumes calls it, too: it may have been killed between saving a checkpoint and removing an older one.
    """
    _remove(folder.glob(".step-*"))
    paths = checkpoints_in(folder)
    _remove(path for path in paths[: max(0, len(paths) - count)] if path.name not in keep_names)
