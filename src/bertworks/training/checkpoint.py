"""Checkpoints: a run's tensors and standing in, a folder with a hash manifest out, and back; whole or not there.

checkpoints/step-00001200/
  model.safetensors, optimizer.safetensors    every tensor by our own names
  standing.json                               step, time and pieces so far, and the recipe's hash
  manifest.json                               sha256 of the others; written last

Of a module that is spread over processes each writes a part, such as model-00002-of-00008.safetensors, with the rows of
every tensor that it keeps. The rows of a tensor lie in the order of the parts, and any number of processes can read
those they need.
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

from bertworks.disk import atomic_write, explain_os_error, flush_folder, sha256, write_json
from bertworks.errors import FolderError
from bertworks.training.devices import LossScaler
from bertworks.training.loop import TrainState

_KINDS = ("model", "optimizer")

# The name of a tensor -> which of its rows to read.
RowSelector = Callable[[str], slice]


def all_rows(name: str) -> slice:
    return slice(None)


def _single_process(text: str) -> list[str]:
    return [text]


@dataclass(frozen=True, slots=True)
class CheckpointProcessGroup:
    """Who writes a checkpoint together: the number of this process, and how many there are.

    `exchange` tells all a text, waits for theirs, and returns all texts by number.
    """

    rank: int = 0
    world_size: int = 1
    all_gather: Callable[[str], list[str]] = _single_process


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read back."""

    folder: Path
    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    train_state: TrainState
    recipe: str


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def save_checkpoint(
    folder: Path,
    model: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    train_state: TrainState,
    recipe: str,
    process_group: CheckpointProcessGroup = CheckpointProcessGroup(),
) -> Path:
    """Write a checkpoint below `folder`, named by its step. A crash leaves either all of it or nothing to be found.

    Every process of a crew calls it with its own tensors; the first makes the folder and completes it.
    """
    final = folder / checkpoint_name(train_state.step)
    part = folder / f".{final.name}.part"
    leads = process_group.rank == 0
    try:
        if leads:
            _remove(folder.glob(".step-*"))  # what a crash left behind
            part.mkdir(parents=True)
        process_group.all_gather("")
        if not part.is_dir():
            raise FolderError(f"cannot write {part}, which another machine made; use a disk that all machines share")
        hashes = _write(part, dict(zip(_KINDS, (model, optimizer), strict=True)), process_group)
        told = process_group.all_gather(json.dumps(hashes))
        if leads:
            write_json(part / "standing.json", {**asdict(train_state), "recipe": recipe})
            known = {name: digest for one in told for name, digest in json.loads(one).items()}
            write_json(part / "manifest.json", known | {"standing.json": sha256(part / "standing.json")})
            _put_in_place(part, final)
    except SafetensorError as error:
        raise FolderError(f"cannot write {final}: {error}; free some space and resume the run") from error
    except OSError as error:
        raise explain_os_error(error, final) from error
    finally:
        if leads:
            _remove(folder.glob(".step-*"))
    return final


def _write(
    part: Path, kinds: Mapping[str, Mapping[str, torch.Tensor]], process_group: CheckpointProcessGroup
) -> dict[str, str]:
    """Write the tensors of this process; return the hash of each file."""
    for kind, tensors in kinds.items():
        with atomic_write(part / _file(kind, process_group.rank, process_group.world_size)) as temporary:
            save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, temporary)
    names = [_file(kind, process_group.rank, process_group.world_size) for kind in kinds]
    return {name: sha256(part / name) for name in names}


def _file(kind: str, rank: int, world_size: int) -> str:
    return f"{kind}.safetensors" if world_size == 1 else f"{kind}-{rank + 1:05d}-of-{world_size:05d}.safetensors"


def _put_in_place(part: Path, final: Path) -> None:
    folder = final.parent
    if final.exists():  # set aside in one go: a crash while it is being removed would leave half of it
        final.rename(folder / f".{final.name}.old")
    part.rename(final)
    flush_folder(folder)
    # A run goes back only behind checkpoints that are damaged; left there, they would count as the newest.
    _remove(path for path in checkpoints_in(folder) if path.name > final.name)


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        shutil.rmtree(path, ignore_errors=True)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints below `folder`, oldest first; unfinished ones have another name."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, every byte checked; a damaged one is refused with the reason."""
    check_checkpoint(path)
    return read_checkpoint(path)


def check_checkpoint(path: Path) -> None:
    """Refuse a checkpoint that is not what was written, with the reason."""
    with _report_damage(path):
        manifest = _manifest(path)
        for name in _files(manifest):
            if sha256(path / name) != manifest[name]:
                raise FolderError(f"checkpoint {path}: {name} is not what was written")


def read_checkpoint(path: Path, rows: RowSelector = all_rows) -> Checkpoint:
    """Read a checkpoint, of every tensor only the rows that are asked for. Its bytes are not checked."""
    with _report_damage(path):
        files = _files(_manifest(path))
        told: dict[str, Any] = json.loads((path / "standing.json").read_text(encoding="utf-8"))
        recipe = told.pop("recipe")
        told["phase_steps"] = {int(phase): steps for phase, steps in told["phase_steps"].items()}
        told["scaling"] = LossScaler(**told["scaling"])
        model, optimizer = (
            _read_tensors([path / name for name in files if name.startswith(kind)], rows) for kind in _KINDS
        )
        return Checkpoint(path, model, optimizer, TrainState(**told), recipe)


@contextlib.contextmanager
def _report_damage(path: Path) -> Any:
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise FolderError(f"checkpoint {path} is damaged: {error}") from error


def _manifest(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return found


def _files(manifest: Mapping[str, str]) -> list[str]:
    """Return the files that have to be there, by the parts that the manifest tells of."""
    counts = [int(found[1]) for name in manifest if (found := re.search(r"-of-(\d+)\.", name))]
    count = max(counts, default=1)
    return [_file(kind, number, count) for kind in _KINDS for number in range(count)] + ["standing.json"]


def _read_tensors(files: Sequence[Path], rows: RowSelector) -> dict[str, torch.Tensor]:
    """Return the wanted rows of every tensor in the parts."""
    with contextlib.ExitStack() as stack:
        holders: dict[str, list[Any]] = {}
        for file in files:
            part = stack.enter_context(safe_open(file, "pt"))
            for name in part.keys():  # noqa: SIM118 (it is no dict)
                holders.setdefault(name, []).append(part)
        return {name: _read_rows(name, parts, rows(name)) for name, parts in holders.items()}


def _read_rows(name: str, parts: Sequence[Any], rows: slice) -> torch.Tensor:
    if rows == slice(None) and len(parts) == 1:
        return parts[0].get_tensor(name)
    found, first = [], 0
    for part in parts:
        stored = part.get_slice(name)
        count = stored.get_shape()[0]
        start = max((rows.start or 0) - first, 0)
        stop = count if rows.stop is None else min(rows.stop - first, count)
        if start < stop:
            found.append(stored[start:stop])
        first += count
    return torch.cat(found) if found else parts[0].get_tensor(name)[:0]


def find_latest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that is whole, and a sentence for each newer one that is not."""
    damaged: list[str] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            check_checkpoint(path)
        except FolderError as error:
            damaged.append(str(error))
        else:
            return path, damaged
    return None, damaged


def load_latest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, read, and a sentence for each newer one that is not."""
    path, damaged = find_latest_checkpoint(folder)
    return None if path is None else read_checkpoint(path), damaged


def keep_last(folder: Path, count: int, keep_names: set[str]) -> None:
    """Remove all but the newest `count` checkpoints and those named in `also`."""
    paths = checkpoints_in(folder)
    _remove(path for path in paths[: max(0, len(paths) - count)] if path.name not in keep_names)
