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
    Crew,
    checkpoint_name,
    keep_last,
    newest_good,
    read_checkpoint,
    save_checkpoint,
)
from bertworks.training.loop import Standing, num_processes
from bertworks.training.optimizer import PaperAdam
from bertworks.training.process_group import exchange, from_first, is_first
from bertworks.training.sharding import is_sharded, own_rows, own_state

_NUM_KEPT = 2


class Saver:
    """Writes the checkpoints of a run one after another. Every process has one, and all call it at the same steps.

    `recipe` is what must be equal for a checkpoint to fit.
    """

    def __init__(self, folder: Path, module: nn.Module, recipe: str, in_background: bool = False) -> None:
        self._folder, self._module, self._recipe = folder, module, recipe
        self._crew = Crew()
        self._thread: ThreadPoolExecutor | None = None
        self._begun: Future[Path] | None = None
        if in_background:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        if is_sharded(module):
            # A thread needs a group of its own: messages of two threads in one group would meet in any order.
            group = torch.distributed.new_group(backend="gloo") if in_background else None
            self._crew = Crew(torch.distributed.get_rank(), num_processes(), lambda text: exchange(text, group))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def save(
        self, optimizer: PaperAdam, standing: Standing, best: str, carried: Mapping[str, torch.Tensor]
    ) -> list[Path]:
        """Write a checkpoint, or begin to. Return those that are on the disk now and had not been told of.

        Beside the newest ones, that called `best` is kept. `carried` is what rows leave for the next step's.
        """
        if self._crew.count == 1 and not is_first():
            return []
        model, moments = own_state(self._module), {**optimizer.state(), **carried}
        if self._thread is None:
            return [self._written(model, moments, standing, best)]
        done = self.finish()  # before memory is taken for the next
        model, moments = _copied(model), _copied(moments)
        self._begun = self._thread.submit(self._written, model, moments, copy.deepcopy(standing), best)
        return done

    def finish(self) -> list[Path]:
        """Wait until everything is on the disk; return what had not been told of."""
        begun, self._begun = self._begun, None
        return [] if begun is None else [begun.result()]

    def _written(
        self, model: dict[str, torch.Tensor], moments: dict[str, torch.Tensor], standing: Standing, best: str
    ) -> Path:
        path = save_checkpoint(self._folder, model, moments, standing, self._recipe, self._crew)
        if self._crew.number == 0:
            keep_last(self._folder, _NUM_KEPT, {best})
        return path


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values.detach().to("cpu", copy=True) for name, values in tensors.items()}


def newest(folder: Path, module: nn.Module) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, with the rows that this process needs, and what is wrong with others.

    The first process checks all bytes and says which one it is.
    """
    path, damaged = newest_good(folder) if is_first() else (None, [])
    step = from_first(-1 if path is None else int(path.name.rpartition("-")[2]))
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
    rows = {name: own_rows(values) for name, values in module.state_dict().items()}
    # The moments of NAME are called mean/NAME and square/NAME.
    return read_checkpoint(path, lambda name: rows.get(name.rpartition("/")[2], slice(None))), damaged
