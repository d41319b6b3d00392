"""Processes that meet again and again in one store, as those of a restarted torchrun do."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import PrefixStore, TCPStore

from bertworks.parallel.process_group import _attempt_prefix


@pytest.mark.parametrize("size", [2, 5])
def test_each_attempt_has_a_name_that_all_know_and_nobody_had_before(size):
    patience = datetime.timedelta(seconds=60)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)

    def met(rank: int) -> tuple[str, list[str]]:
        client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=patience)
        name = _attempt_prefix(client, rank, size)
        own = PrefixStore(name, client)
        own.set(f"address/{rank}", f"{name} {rank}")
        return name, [own.get(f"address/{other}").decode() for other in range(size)]

    names = []
    with ThreadPoolExecutor(size) as processes:
        for _ in range(4):
            found = list(processes.map(met, reversed(range(size))))
            names.append(found[0][0])
            assert found == [(names[-1], [f"{names[-1]} {rank}" for rank in range(size)])] * size
    assert len(set(names)) == len(names)
