"""The processes of one run: torchrun's environment variables in, a process group and its collectives out.

Without torchrun there is no group, and every collective returns what it was given.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing
from torch._C._distributed_c10d import PrefixStore, TCPStore

from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.folder_lock import lock_folder
from bertworks.parallel.workers import num_cores

# The variables that torchrun sets in every process.
_ENV_VARS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# The main process may write a checkpoint while the others wait. A process that exits is noticed at once; the timeout
# only matters for a node that disappears silently, e.g. without power.
_TIMEOUT = datetime.timedelta(minutes=30)


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Join the process group if torchrun started several processes, and destroy it at the end."""
    if torch.distributed.is_initialized() or not _is_distributed():
        yield
        return
    _exit_with_torchrun()
    _set_num_threads()
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        _init_process_group("cpu:gloo,cuda:nccl" if has_cuda else "gloo")
        yield
    except RuntimeError as error:
        if not _is_connection_loss(error):
            raise
        raise BertworksError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} lost the connection to the others; see the "
            f"error of the process that failed. The same command resumes from the last checkpoint"
        ) from error
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, in the main process for all; where another run holds it, all raise that error."""
    with contextlib.ExitStack() as stack:
        message = ""
        if is_main_process():
            try:
                stack.enter_context(lock_folder(folder))
            except FolderError as error:
                message = str(error)
        message = all_gather(message)[0]
        if message:
            raise FolderError(message)
        yield


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def local_world_size() -> int:
    """Return how many processes of the run share this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size())) if world_size() > 1 else 1


def is_first_of_node() -> bool:
    """Return whether this is the first process of the run on its node."""
    return world_size() == 1 or os.environ.get("LOCAL_RANK", "0") == "0"


def is_main_process() -> bool:
    """Return whether this process writes files and prints; defined before and after the group exists, too."""
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return not _is_distributed() or os.environ["RANK"] == "0"


def check_single_process(activity: str) -> None:
    """Refuse torchrun with several processes for a command that uses only one."""
    if _is_distributed():
        raise SettingsError(f"{activity} runs in a single process; start it without torchrun")


def any_process(flag: bool) -> bool:
    """Return on every process whether the flag is set on any of them."""
    return -all_reduce_min(-int(flag)) > 0


def all_reduce_min(number: int) -> int:
    if world_size() == 1:
        return number
    tensor = torch.tensor([number], dtype=torch.int64)
    torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MIN)
    return int(tensor)


def all_reduce_sum(numbers: Sequence[float]) -> list[float]:
    """Return the elementwise sum over all processes."""
    if world_size() == 1:
        return list(numbers)
    tensor = torch.tensor(numbers, dtype=torch.float64)  # exact for integers up to 2^53
    torch.distributed.all_reduce(tensor)
    return tensor.tolist()


def broadcast(number: float) -> float:
    """Return the number of the main process on every process."""
    if world_size() == 1:
        return number
    tensor = torch.tensor([number], dtype=torch.float64)
    torch.distributed.broadcast(tensor, 0)
    return float(tensor)


def all_gather(text: str, group: torch.distributed.ProcessGroup | None = None) -> list[str]:
    """Return the texts of all processes, by rank; also a barrier."""
    if world_size() == 1:
        return [text]
    data = text.encode()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size())]
    torch.distributed.all_gather(lengths, torch.tensor([len(data)]), group)
    max_length = int(max(lengths))
    padded = torch.tensor(list(data.ljust(max(max_length, 1))), dtype=torch.uint8)
    buffers = [torch.empty_like(padded) for _ in lengths]
    torch.distributed.all_gather(buffers, padded, group)
    return [bytes(values[: int(length)].tolist()).decode() for values, length in zip(buffers, lengths, strict=True)]


def _is_distributed() -> bool:
    return all(name in os.environ for name in _ENV_VARS) and int(os.environ["WORLD_SIZE"]) > 1


def _init_process_group(backend: str) -> None:
    """Initialize the default group.

    torchrun keeps one store for all its restarts, and after a process has died, the next attempt would read the
    addresses of the previous one there (pytorch issue 135712). So each attempt uses a key prefix of its own.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        torch.distributed.init_process_group(backend, timeout=_TIMEOUT)
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world_size, is_master=False, timeout=_TIMEOUT)
    prefix_store = PrefixStore(_attempt_prefix(store, rank, world_size), store)
    torch.distributed.init_process_group(
        backend, store=prefix_store, rank=rank, world_size=world_size, timeout=_TIMEOUT
    )


def _attempt_prefix(store: TCPStore, rank: int, world_size: int) -> str:
    """Agree on an unused key prefix through a store that still holds the keys of earlier attempts.

    Every process publishes a random token. Rank 0 publishes its own token, which is the prefix, followed by those it
    has read, again and again, until every process has found its token there and has acknowledged it under the prefix.
    """
    deadline = time.monotonic() + _TIMEOUT.total_seconds()
    token = uuid.uuid4().hex
    if rank:
        store.set(f"token/{rank}", token)
    while time.monotonic() < deadline:
        if rank:
            prefix, *tokens = store.get("attempt").decode().split()
            if token in tokens:
                store.set(f"{prefix}/acknowledged/{rank}", "")
                return prefix
        else:
            other_ranks = range(1, world_size)
            tokens = [
                value.decode() for value in store.multi_get([f"token/{other_rank}" for other_rank in other_ranks])
            ]
            store.set("attempt", " ".join([token, *tokens]))
            if store.check([f"{token}/acknowledged/{other_rank}" for other_rank in other_ranks]):
                return token
        time.sleep(0.02)
    raise torch.distributed.DistError("the processes did not meet")


def _exit_with_torchrun() -> None:
    """Have the kernel kill this process when torchrun dies; otherwise it would become an orphan."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]


def _set_num_threads() -> None:
    """Divide the cores of a node among its processes, unless the user has set OMP_NUM_THREADS (torchrun sets 1)."""
    if os.environ.get("OMP_NUM_THREADS", "1") == "1":
        num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        torch.set_num_threads(max(1, num_cores() // num_processes))


def _is_connection_loss(error: RuntimeError) -> bool:
    """Return whether other processes are gone. gloo has no error class for it, only file names in the message."""
    return isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error)
