"""The checkpoints of a run: its module, optimizer and standing in, checkpoints on disk out, and back.

Alone and where every process has the whole module, the first writes. Where it is spread over processes, each writes and
reads its rows. Where a device apart computes, it is given back as soon as its tensors are copied, and a thread writes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed
from torch import nn

from bertworks.errors import FolderError
from bertworks.training.checkpoint import (
    Checkpoint,
    CheckpointProcessGroup,
    checkpoint_name,
    find_latest_checkpoint,
    keep_last,
    read_checkpoint,
    save_checkpoint,
)
from bertworks.training.loop import TrainState, world_size
from bertworks.training.optimizer import BertAdam
from bertworks.training.process_group import all_gather, broadcast, is_main_process
from bertworks.training.sharding import is_sharded, local_rows, local_state_dict

_SAVE_TOTAL_LIMIT = 2


class CheckpointWriter:
    """Writes the checkpoints of a run one after another. Every process has one, and all call it at the same steps.

    `recipe` is what must be equal for a checkpoint to fit.
    """

    def __init__(self, folder: Path, module: nn.Module, recipe: str, in_background: bool = False) -> None:
        self._folder, self._module, self._recipe = folder, module, recipe
        self._process_group = CheckpointProcessGroup()
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[Path] | None = None
        if in_background:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="saving")
        if is_sharded(module):
            # A thread needs a group of its own: messages of two threads in one group would meet in any order.
            group = torch.distributed.new_group(backend="gloo") if in_background else None
            self._process_group = CheckpointProcessGroup(
                torch.distributed.get_rank(), world_size(), lambda text: all_gather(text, group)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown()

    def save(
        self, optimizer: BertAdam, train_state: TrainState, best: str, encoder_state: Mapping[str, torch.Tensor]
    ) -> list[Path]:
        """Write a checkpoint, or begin to. Return those that are on the disk now and had not been told of.

        Beside the newest ones, that called `best` is kept. `carried` is what rows leave for the next step's.
        """
        if self._process_group.world_size == 1 and not is_main_process():
            return []
        model, moments = local_state_dict(self._module), {**optimizer.state(), **encoder_state}
        if self._executor is None:
            return [self._write(model, moments, train_state, best)]
        done = self.finish()  # before memory is taken for the next
        model, moments = _copy_to_cpu(model), _copy_to_cpu(moments)
        self._pending = self._executor.submit(self._write, model, moments, copy.deepcopy(train_state), best)
        return done

    def finish(self) -> list[Path]:
        """Wait until everything is on the disk; return what had not been told of."""
        begun, self._pending = self._pending, None
        return [] if begun is None else [begun.result()]

    def _write(
        self, model: dict[str, torch.Tensor], moments: dict[str, torch.Tensor], train_state: TrainState, best: str
    ) -> Path:
        path = save_checkpoint(self._folder, model, moments, train_state, self._recipe, self._process_group)
        if self._process_group.rank == 0:
            keep_last(self._folder, _SAVE_TOTAL_LIMIT, {best})
        return path


def _copy_to_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values.detach().to("cpu", copy=True) for name, values in tensors.items()}


def load_latest_for_module(folder: Path, module: nn.Module) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, with the rows that this process needs, and what is wrong with others.

    The first process checks all bytes and says which one it is.
    """
    path, damaged = find_latest_checkpoint(folder) if is_main_process() else (None, [])
    step = broadcast(-1 if path is None else int(path.name.rpartition("-")[2]))
    if step < 0:
        return None, damaged
    path = folder / checkpoint_name(step)
    if not path.exists():
        raise FolderError(
            f"the first process goes on from {path}, which is not there for process {torch.distributed.get_rank()}; "
            f"the run folder must lie on a disk that all machines share"
        )
    if not is_sharded(module):
        return read_checkpoint(path), damaged
    rows = {name: local_rows(values) for name, values in module.state_dict().items()}
    # The moments of NAME are called mean/NAME and square/NAME.
    return read_checkpoint(path, lambda name: rows.get(name.rpartition("/")[2], slice(None))), damaged
