"""Weights of a model folder: safetensors or a PyTorch .bin in, tensors by name out, each read on access.

No code in a file is ever executed: a .bin is a pickle, and is read only with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bertworks.disk import as_os_error, atomic_write, read_json
from bertworks.encoders.family import Family
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import FolderError
from bertworks.reading import check_path, unreadable_reason

Shape = tuple[int, ...]
RETRY_HINT = "copy or download it again"
# Tensors of a .bin may be tied, such as the layers of an ALBERT: how often its bytes may be used.
_MAX_SHARING = 64
# torch's DataParallel and DistributedDataParallel add it to all names.
_PARALLEL_PREFIX = "module."
# Suffixes of tensors that follow from the config: position ids and sinusoidal position embeddings.
_BUFFER_SUFFIXES = ("position_ids", "token_type_ids", "embed_positions.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its shape, and a function that reads it."""

    file: Path
    shape: Shape
    read: Callable[[], torch.Tensor]


class Weights(Mapping[str, torch.Tensor]):
    """The tensors of a model by Hugging Face's names; values are read on access."""

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


def open_weights(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file of `find_weights`, under the names in the file."""
    return READERS[file.name](file)


def read_tensors_of(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file or a .bin of any name, such as that of an adapter."""
    return _read_safetensors(file) if file.suffix == ".safetensors" else _read_bin(file)


def wrap_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """Wrap tensors that were read from `file` already."""
    return {
        name: StoredTensor(file, tuple(tensor.shape), functools.partial(_return_tensor, tensor))
        for name, tensor in tensors.items()
    }


def normalize_names(entries: Mapping[str, StoredTensor], family: Family, table: NameTable) -> dict[str, StoredTensor]:
    """Return the tensors under the names that transformers writes today.

    Old files name the weight and bias of a norm gamma and beta, and some families have other names for a head; the
    names of a bare encoder have no prefix, those of a DataParallel module begin with "module."; buffers and copies of
    tied tensors are dropped. Where a head has the layer that we read as the encoder's pooler, as RoBERTa's classifiers
    do, a pooler beside it is unused and dropped, too.
    """
    if entries and all(name.startswith(_PARALLEL_PREFIX) for name in entries):
        entries = {name.removeprefix(_PARALLEL_PREFIX): entry for name, entry in entries.items()}
    overrides = {old: new for prefixes in family.prefix_overrides.values() for new, old in prefixes.items()}
    prefixed_names = [name for theirs in table.values() for name in theirs if name.startswith(family.prefix)]
    bare_names = {name.removeprefix(family.prefix) for name in prefixed_names}
    roots = tuple(name.split(".")[0] + "." for name in bare_names)
    entries_by_key: dict[str, StoredTensor] = {}
    keys_of_heads: set[str] = set()
    for name, entry in entries.items():
        if name.endswith(_BUFFER_SUFFIXES):
            continue
        key = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        other = next((prefix for prefix in family.other_prefixes if key.startswith(prefix)), "")
        key = family.other_prefixes.get(other, "") + key.removeprefix(other)
        key = family.prefix + key if key.startswith(roots) or key in bare_names else key
        of_head = next((old for old in overrides if key.startswith(old)), None)
        if of_head is not None:
            key = overrides[of_head] + key.removeprefix(of_head)
            keys_of_heads.add(key)
        elif key in keys_of_heads:
            continue
        if key in entries_by_key and of_head is None:
            raise FolderError(f"{entry.file} holds '{key}' twice, the second time as '{name}'; {RETRY_HINT}")
        entries_by_key[key] = entry
    return _drop_copies(entries_by_key, family)


def write_weights(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as safetensors, sorted by name."""
    contiguous = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    with atomic_write(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors would create a file that only its owner may read
        try:
            save_file(contiguous, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise as_os_error(error) from error
        temporary.chmod(mode)


def untied_output(family: Family, tensors: Collection[str]) -> str | None:
    """Return the name of the output embeddings of a masked LM that are not tied to the token embeddings; else None.

    Those that are tied, `normalize_names` drops.
    """
    return next((copy for copy in family.copies if copy.endswith(".weight") and copy in tensors), None)


def _drop_copies(entries: dict[str, StoredTensor], family: Family) -> dict[str, StoredTensor]:
    """Drop copies of tied tensors; if a file has only the copy, it gets the name of the original.

    The output layer of a masked LM may be untied: its weight is kept, and its bias replaces that of the head.
    """
    originals = {name: entry for name, entry in entries.items() if name not in family.copies}
    mlm_biases = family.heads.get("mlm", {}).get("bias", ())
    for copy, original in family.copies.items():
        if copy not in entries:
            continue
        if original not in originals or (original in mlm_biases):
            originals[original] = entries[copy]
        elif not _is_equal(entries[copy], originals[original]):
            if not mlm_biases:
                raise FolderError(
                    f"{entries[copy].file}: '{copy}' should be tied to '{original}', but differs; models of the family "
                    f"'{family.model_type}' with untied output embeddings are not supported: tie them and save again"
                )
            originals[copy] = entries[copy]
    return originals


def _is_equal(left: StoredTensor, right: StoredTensor) -> bool:
    return left.shape == right.shape and torch.equal(left.read(), right.read())


def _read_safetensors(file: Path) -> dict[str, StoredTensor]:
    _check_readable(file)
    try:
        # The open handle is a memory map: a new file of the same name does not change what is read.
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
    _check_readable(file)
    try:
        tensors = _load_pickle(file)
    except pickle.UnpicklingError:
        raise FolderError(
            f"{file} holds other Python objects than tensors, which could execute code, or is damaged. Nothing in it "
            f"was executed; get the model as model.safetensors"
        ) from None
    except Exception as error:  # a damaged archive can raise anything
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise FolderError(_unreadable_message(file, first_line)) from None
    if not isinstance(tensors, dict) or not all(map(_is_named_tensor, tensors.items())):
        raise FolderError(f"{file} should hold a state_dict and nothing else; save the model's state_dict again")
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    if any(map(_repeats_values, tensors.values())) or num_bytes > _MAX_SHARING * file.stat().st_size:
        raise FolderError(f"{file} claims {num_bytes:,} bytes of tensors, more than it holds; {RETRY_HINT}")
    return wrap_tensors(file, tensors)


def _load_pickle(file: Path) -> Any:
    """Return what torch.save wrote. Its archives are not compressed: one that would grow when it is read is refused.

    Tensors are memory-mapped, so that one that claims more values than the file has is an error.
    """
    if not zipfile.is_zipfile(file):  # before torch 1.6
        return torch.load(file, map_location="cpu", weights_only=True)
    with zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > file.stat().st_size:
            raise ValueError("its archive is compressed, which torch.save never does")
    return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def _is_named_tensor(item: tuple[Any, Any]) -> bool:
    """Whether a member of a state_dict is a name and a tensor with values: sparse and meta tensors have none."""
    name, tensor = item
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        return False
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _repeats_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has more values than are stored: a stride of 0 makes one number a matrix of any size."""
    return tensor.nbytes > tensor.untyped_storage().nbytes()


def _read_index(file: Path) -> dict[str, StoredTensor]:
    """Read sharded weights by their index, which maps tensors to files."""
    index = read_json(file, "an index of weights")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise FolderError(f"{file} should list the file of each tensor under 'weight_map', but does not; {RETRY_HINT}")
    read = _read_safetensors if file.name.startswith("model.safetensors") else _read_bin
    entries: dict[str, StoredTensor] = {}
    for name in sorted(set(weight_map.values())):
        shard = file.parent / name
        if Path(name).name != name:
            raise FolderError(f"{file} names '{name}', which is no file of this folder; {RETRY_HINT}")
        check_path(shard)
        if not shard.is_file():
            raise FolderError(f"{file} names '{name}', but there is no such file in its folder; {RETRY_HINT}")
        entries |= read(shard)
    absent = [tensor for tensor in weight_map if tensor not in entries]
    if absent:
        raise FolderError(
            f"{file.parent / weight_map[absent[0]]} should hold '{absent[0]}', but does not; {RETRY_HINT}"
        )
    return entries


def _check_readable(file: Path) -> None:
    """Refuse a file that cannot be opened, as unreadable and not as damaged."""
    try:
        with file.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        raise FolderError(f"{file} cannot be read: {unreadable_reason(error)}") from None


def _unreadable_message(file: Path, error: str) -> str:
    with contextlib.suppress(OSError), file.open("rb") as stream:
        if stream.read(30).startswith(b"version https://git-lfs"):
            return f"{file} is only a Git LFS pointer; fetch the file itself with: git lfs pull"
    return f"{file} is damaged or truncated ({error}); {RETRY_HINT}"


def _return_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# The keys are WEIGHT_FILES.
READERS: dict[str, Callable[[Path], dict[str, StoredTensor]]] = {
    "model.safetensors": _read_safetensors,
    "model.safetensors.index.json": _read_index,
    "pytorch_model.bin": _read_bin,
    "pytorch_model.bin.index.json": _read_index,
}
