"""The weights in a folder: safetensors or a foreign .bin in, tensors by name out, each read when it is asked for.

Nothing in a file is ever executed: a .bin is a pickle, and is read with `weights_only=True` and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bertworks.disk import atomic_write, read_json
from bertworks.encoders.families import Family
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import FolderError

Shape = tuple[int, ...]
RETRY_HINT = "copy or download it again"
# What the names of tensors end with that follow from the sizes: numbers of places, and positions that are waves.
_BUFFER_SUFFIXES = ("position_ids", "token_type_ids", "embed_positions.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor where it lies: its file, its shape, and how to read it."""

    file: Path
    shape: Shape
    read: Callable[[], torch.Tensor]


class Weights(Mapping[str, torch.Tensor]):
    """The tensors of a model by Hugging Face's names. Only names and shapes are in memory until one is asked for."""

    def __init__(self, entries: Mapping[str, StoredTensor]) -> None:
        self.entries = entries

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.entries[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def find_weights(folder: Path) -> Path | None:
    """Return the file that holds or lists the weights, the safest kind first; None if there is none we can read."""
    return next((folder / name for name in READERS if (folder / name).is_file()), None)


def open_weights(file: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a file that `find_weights` found, under the name it has there."""
    return READERS[file.name](file)


def wrap_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """Return tensors that have been read from `file` already."""
    return {
        name: StoredTensor(file, tuple(one.shape), functools.partial(_return_tensor, one))
        for name, one in tensors.items()
    }


def normalize_names(entries: Mapping[str, StoredTensor], family: Family, table: NameTable) -> dict[str, StoredTensor]:
    """Return the tensors under the names that transformers writes today.

    Old files call a norm's weight and bias gamma and beta; the names of a bare encoder have no prefix; buffers and
    second copies of tied tensors are no weights.
    """
    moved = {there: here for beside in family.prefix_overrides.values() for here, there in beside.items()}
    roots = {name.removeprefix(family.prefix).split(".")[0] + "." for theirs in table.values() for name in theirs}
    found: dict[str, StoredTensor] = {}
    for name, place in entries.items():
        if name.endswith(_BUFFER_SUFFIXES):
            continue
        now = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        now = family.prefix + now if now.startswith(tuple(roots)) else now
        now = next((here + now.removeprefix(there) for there, here in moved.items() if now.startswith(there)), now)
        if now in found:
            raise FolderError(f"{place.file} holds '{now}' twice, the second time as '{name}'; {RETRY_HINT}")
        found[now] = place
    return _drop_copies(found, family.copies)


def write_weights(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as safetensors, in the order of their names."""
    ready = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    with atomic_write(path) as temporary:
        temporary.touch()
        usual = temporary.stat().st_mode  # the library makes a file that only its owner may read
        try:
            save_file(ready, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # it tells what the system said only in words
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
        temporary.chmod(usual)


def _drop_copies(entries: dict[str, StoredTensor], copies: Mapping[str, str]) -> dict[str, StoredTensor]:
    """Leave out tensors that repeat another; where only the copy was written, it takes the other's name."""
    kept = {name: place for name, place in entries.items() if name not in copies}
    for copy, original in copies.items():
        if copy not in entries:
            continue
        if original not in kept:
            kept[original] = entries[copy]
        elif not torch.equal(entries[copy].read(), kept[original].read()):
            raise FolderError(
                f"{entries[copy].file}: '{copy}' should repeat '{original}', but differs; models with an output of "
                f"their own are not supported, so tie the two and save the model again"
            )
    return kept


def _read_safetensors(file: Path) -> dict[str, StoredTensor]:
    try:
        # The handle maps the file and is kept: a file written anew under the same name does not change what is read.
        handle: Any = safe_open(file, framework="pt", device="cpu")
        shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FolderError(_unreadable_message(file, str(error))) from None
    return {
        name: StoredTensor(file, shape, functools.partial(_from_safetensors, handle, file, name))
        for name, shape in shapes.items()
    }


def _from_safetensors(handle: Any, file: Path, name: str) -> torch.Tensor:
    try:
        tensor: torch.Tensor = handle.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{file}: tensor '{name}' cannot be read ({error}); {RETRY_HINT}") from None
    return tensor


def _read_bin(file: Path) -> dict[str, StoredTensor]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FolderError(
            f"{file} is not a plain file of weights: it holds other Python objects, which could run commands, or is "
            f"damaged. It was refused and nothing in it was run; get the model as model.safetensors"
        ) from None
    except Exception as error:  # a damaged archive raises whatever its damaged part leads to
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise FolderError(_unreadable_message(file, first)) from None
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise FolderError(f"{file} should hold tensors by name and nothing else; save the model's state_dict anew")
    return wrap_tensors(file, found)


def _read_index(file: Path) -> dict[str, StoredTensor]:
    """Read weights that lie in several files, by the index that says which tensor is where."""
    index = read_json(file, "an index of weights")
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise FolderError(f"{file} should list the file of each tensor under 'weight_map', but does not; {RETRY_HINT}")
    read = _read_safetensors if file.name.startswith("model.safetensors") else _read_bin
    found: dict[str, StoredTensor] = {}
    for name in sorted(set(places.values())):
        part = file.parent / name
        if Path(name).name != name:
            raise FolderError(f"{file} names '{name}', which is no file of this folder; {RETRY_HINT}")
        if not part.is_file():
            raise FolderError(f"{file} names '{name}', but there is no such file beside it; {RETRY_HINT}")
        found |= read(part)
    absent = [tensor for tensor in places if tensor not in found]
    if absent:
        raise FolderError(f"{file.parent / places[absent[0]]} should hold '{absent[0]}', but does not; {RETRY_HINT}")
    return found


def _unreadable_message(file: Path, error: str) -> str:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        if opened.read(30).startswith(b"version https://git-lfs"):
            return f"{file} is only a pointer of Git LFS; fetch the file itself with: git lfs pull"
    return f"{file} is damaged or cut short ({error}); {RETRY_HINT}"


def _return_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# In the order of preference: safetensors before pickles, one file before many.
READERS: dict[str, Callable[[Path], dict[str, StoredTensor]]] = {
    "model.safetensors": _read_safetensors,
    "model.safetensors.index.json": _read_index,
    "pytorch_model.bin": _read_bin,
    "pytorch_model.bin.index.json": _read_index,
}
