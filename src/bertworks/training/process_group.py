"""Many processes of one run: torchrun's environment in, a group that computes together out; alone, nothing changes."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.distributed
import torch.multiprocessing
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from bertworks.encoders.layers import DropoutSeeds
from bertworks.errors import BertworksError, SettingsError
from bertworks.objectives.registry import Objective
from bertworks.parallel.workers import num_cores
from bertworks.sampling.batch import Batch
from bertworks.training.loop import Trainable, world_size
from bertworks.training.sharding import is_sharded

# What torchrun tells every process that it starts.
_ENV_VARS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# How long processes wait for one another: the first may save alone meanwhile. One that ends is missed at once; only a
# machine that is gone without a word, such as one without power, is waited for.
_TIMEOUT = datetime.timedelta(minutes=30)


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Join the other processes, if torchrun started several, and leave the group whatever happens."""
    if torch.distributed.is_initialized() or not _is_distributed():
        yield
        return
    _end_with_torchrun()
    _share_cores()
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
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has lost the others; one of them says why. "
            f"The same command continues after the last checkpoint"
        ) from error
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def is_main_process() -> bool:
    """Return whether this process is the one that writes and speaks, also before and after the group exists."""
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    return not _is_distributed() or os.environ["RANK"] == "0"


def check_single_process(what: str) -> None:
    """Refuse to be one of several processes that torchrun started, for what runs in one."""
    if _is_distributed():
        raise SettingsError(f"{what} runs in a single process; start it without torchrun")


def local_world_size() -> int:
    """Return how many processes of the run share this machine, this one included."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size())) if world_size() > 1 else 1


def local_batch_size(batch_size: int) -> int:
    """Return how many examples of a batch each process takes."""
    if batch_size % world_size():
        raise SettingsError(
            f"a batch of {batch_size} cannot be shared equally among {world_size()} processes; choose a multiple of "
            f"{world_size()} with --batch, or another --nproc-per-node"
        )
    return batch_size // world_size()


def wrap_ddp(module: Objective, get_batch: Callable[[], Batch]) -> Trainable:
    """Return a module that adds up its gradients over all processes; alone, or spread over them, the module itself."""
    if world_size() == 1 or is_sharded(module):
        return module
    wrapped = DistributedDataParallel(module)
    if world_size() > 2:
        # torch rearranges its buckets after the first backward pass, and with them the order in which the gradients of
        # more than two processes are added. So that a resumed run does not differ in the last bits of its first step,
        # every session begins with a pass that is thrown away.
        batch = get_batch()
        module.train()
        seeds = DropoutSeeds(torch.tensor(0, dtype=torch.int32, device=batch.input_ids.device))
        wrapped(batch, dict.fromkeys(module.counts(batch), 1.0), seeds).value.backward()
        wrapped.zero_grad(set_to_none=True)
    return cast(Trainable, wrapped)


def any_process(flag: bool) -> bool:
    """Return whether any process wishes it; all get the same answer."""
    return -all_reduce_min(-int(flag)) > 0


def all_reduce_min(number: int) -> int:
    """Return the smallest of the numbers that the processes name."""
    if world_size() == 1:
        return number
    told = torch.tensor([number], dtype=torch.int64)
    torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MIN)
    return int(told)


def broadcast(number: int) -> int:
    """Return the number that the first process names."""
    return int(all_gather(str(number))[0])


def all_gather(text: str, group: torch.distributed.ProcessGroup | None = None) -> list[str]:
    """Wait for all processes of a group, and return what each of them says, by rank."""
    if world_size() == 1:
        return [text]
    data = text.encode()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size())]
    torch.distributed.all_gather(lengths, torch.tensor([len(data)]), group)
    longest = int(max(lengths))
    padded = torch.tensor(list(data.ljust(max(longest, 1))), dtype=torch.uint8)
    told = [torch.empty_like(padded) for _ in lengths]
    torch.distributed.all_gather(told, padded, group)
    return [bytes(one[: int(length)].tolist()).decode() for one, length in zip(told, lengths, strict=True)]


def _is_distributed() -> bool:
    return all(name in os.environ for name in _ENV_VARS) and int(os.environ["WORLD_SIZE"]) > 1


def _init_process_group(backend: str) -> None:
    """Found the group of all processes.

    torchrun keeps one store for all its attempts, and where a process died the next attempt would read the addresses
    of the last one there (pytorch issue 135712). So each attempt writes under a name that is its own.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        torch.distributed.init_process_group(backend, timeout=_TIMEOUT)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, size, is_master=False, timeout=_TIMEOUT)
    own = PrefixStore(_name_of_attempt(store, rank, size), store)
    torch.distributed.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=_TIMEOUT)


def _name_of_attempt(store: TCPStore, rank: int, size: int) -> str:
    """Agree on a name that nobody has used, in a store that holds what earlier processes said.

    Every process says a word that it has drawn, and the first answers with a name and the words that it has read,
    again and again until all have found their own word there and said so under the new name.
    """
    end = time.monotonic() + _TIMEOUT.total_seconds()
    word = uuid.uuid4().hex
    if rank:
        store.set(f"word/{rank}", word)
    while time.monotonic() < end:
        if rank:
            name, *words = store.get("attempt").decode().split()
            if word in words:
                store.set(f"{name}/read/{rank}", "")
                return name
        else:
            others = range(1, size)
            words = [said.decode() for said in store.multi_get([f"word/{other}" for other in others])]
            store.set("attempt", " ".join([word, *words]))
            if store.check([f"{word}/read/{other}" for other in others]):
                return word
        time.sleep(0.02)
    raise torch.distributed.DistError("the processes did not meet")


def _end_with_torchrun() -> None:
    """Have the system end this process if torchrun is killed: nobody would watch over it any more."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]


def _share_cores() -> None:
    """Give each process of a machine its part of the cores. torchrun says 1 where nobody said a number."""
    if os.environ.get("OMP_NUM_THREADS", "1") == "1":
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        torch.set_num_threads(max(1, num_cores() // neighbours))


def _is_connection_loss(error: RuntimeError) -> bool:
    """Tell whether the others are gone. gloo has no kind of its own for that, only its file names in the message."""
    return isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error)
