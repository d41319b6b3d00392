"""The checkpoints of a run: its module, optimizer and train state in, checkpoints on disk out, and back.

Without sharding, the main process writes; with sharding, each process writes and reads its local rows. In the
background, training continues as soon as the tensors are copied to the CPU, and a thread writes them.
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
from bertworks.parallel.process_group import all_gather, broadcast, is_main_process, rank, world_size
from bertworks.training.checkpoint import (
    Checkpoint,
    CheckpointProcessGroup,
    checkpoint_name,
    find_latest_checkpoint,
    keep_last,
    read_checkpoint,
    save_checkpoint,
)
from bertworks.training.loop import TrainState
from bertworks.training.optimizer import BertAdam
from bertworks.training.sharding import is_sharded, local_rows, local_state_dict

_SAVE_TOTAL_LIMIT = 2


class CheckpointWriter:
    """Writes the checkpoints of a run. Every process has one, and all of them call it at the same steps.

    `recipe` is the hash of the recipe, stored in each checkpoint.
    """

    def __init__(self, folder: Path, module: nn.Module, recipe: str, in_background: bool = False) -> None:
        self._folder, self._module, self._recipe = folder, module, recipe
        self._process_group = CheckpointProcessGroup()
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[Path] | None = None
        if in_background:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="saving")
        if is_sharded(module):
            # The thread needs its own group: collectives of two threads in one group could interleave.
            group = torch.distributed.new_group(backend="gloo") if in_background else None
            self._process_group = CheckpointProcessGroup(rank(), world_size(), lambda text: all_gather(text, group))

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
        """Write a checkpoint, or start to in the background. Return the newly completed checkpoints.

        The checkpoint named `best` is kept besides the newest ones. `encoder_state` is that of stateful batches.
        """
        if self._process_group.world_size == 1 and not is_main_process():
            return []
        model, moments = local_state_dict(self._module), {**optimizer.state(), **encoder_state}
        if self._executor is None:
            return [self._write(model, moments, train_state, best)]
        completed = self.finish()  # before copying, which needs memory
        model, moments = _copy_to_cpu(model), _copy_to_cpu(moments)
        self._pending = self._executor.submit(self._write, model, moments, copy.deepcopy(train_state), best)
        return completed

    def remove_superseded(self, best: str, resumed: str) -> None:
        """Remove the older checkpoints that a killed run did not come to remove; not the best and the resumed one."""
        if is_main_process():
            keep_last(self._folder, _SAVE_TOTAL_LIMIT, {best, resumed})

    def finish(self) -> list[Path]:
        """Wait for the checkpoint in the background; return it if it is newly completed."""
        pending, self._pending = self._pending, None
        return [] if pending is None else [pending.result()]

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
    """Read the local rows of the newest undamaged checkpoint; return it, and a message for each damaged newer one.

    The main process verifies the hashes and broadcasts the step. If all checkpoints are damaged, all processes raise.
    """
    path, damaged, message = None, list[str](), ""
    if is_main_process():
        try:
            path, damaged = find_latest_checkpoint(folder)
        except FolderError as error:
            message = str(error)
    message = all_gather(message)[0]
    if message:
        raise FolderError(message)
    step = int(broadcast(-1 if path is None else int(path.name.rpartition("-")[2])))
    if step < 0:
        return None, damaged
    path = folder / checkpoint_name(step)
    if not path.exists():
        raise FolderError(
            f"the main process resumes from {path}, which does not exist for process {rank()}; the run folder must be "
            f"on a disk that all nodes share"
        )
    if not is_sharded(module):
        return read_checkpoint(path), damaged
    rows = {name: local_rows(values) for name, values in module.state_dict().items()}
    # The moments of NAME are exp_avg/NAME and exp_avg_sq/NAME, its average is ema/NAME.
    return read_checkpoint(path, lambda name: rows.get(name.rpartition("/")[2], slice(None))), damaged
