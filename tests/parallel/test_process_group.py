"""The process group: collectives of several processes and of one, and restarts of torchrun."""

import datetime
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed
from many_processes import run_processes
from torch.distributed import PrefixStore, TCPStore

from bertworks.parallel.process_group import (
    _attempt_prefix,
    all_gather,
    all_reduce_min,
    all_reduce_sum,
    any_process,
    broadcast,
    is_main_process,
    process_group,
    rank,
    world_size,
)


def exchange(texts: list[str]) -> tuple[object, ...]:
    number = int(os.environ["RANK"])
    with process_group():
        assert rank() == number
        return (
            all_gather(texts[number]),
            broadcast(7 + number),
            all_reduce_sum([number, 0.5]),
            all_reduce_min(5 - number),
            any_process(number == 1),
            any_process(False),
            world_size(),
        )


def test_collectives_give_all_processes_the_same_result():
    texts = ["", "北京", "a longer text"]
    assert run_processes(3, exchange, texts) == [(texts, 7, [3.0, 1.5], 3, True, False, 3)] * 3


def test_a_single_process_has_no_group(monkeypatch):
    with process_group():
        assert not torch.distributed.is_initialized()
        assert is_main_process()
        assert (rank(), world_size()) == (0, 1)
        assert all_reduce_min(7) == 7
        assert all_reduce_sum([1, 2]) == [1, 2]
        assert broadcast(3) == 3
        assert all_gather("text") == ["text"]
    monkeypatch.setenv("RANK", "1")  # of another program: torchrun's other variables are missing
    assert is_main_process()


@pytest.mark.parametrize("size", [2, 5])
def test_each_attempt_of_torchrun_has_a_new_prefix_that_all_processes_agree_on(size):
    """torchrun keeps one store for all its restarts."""
    timeout = datetime.timedelta(seconds=60)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)

    def join(rank: int) -> tuple[str, list[str]]:
        client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timeout)
        prefix = _attempt_prefix(client, rank, size)
        store = PrefixStore(prefix, client)
        store.set(f"address/{rank}", f"{prefix} {rank}")
        return prefix, [store.get(f"address/{other}").decode() for other in range(size)]

    prefixes = []
    with ThreadPoolExecutor(size) as processes:
        for _ in range(4):
            joined = list(processes.map(join, reversed(range(size))))
            prefix = joined[0][0]
            assert joined == [(prefix, [f"{prefix} {rank}" for rank in range(size)])] * size
            prefixes.append(prefix)
    assert len(set(prefixes)) == len(prefixes)
