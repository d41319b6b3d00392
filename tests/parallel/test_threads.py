"""The number of threads is that of PyTorch where it is loaded, and else our own, one for each thread."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from bertworks.parallel.threads import get_num_threads, set_num_threads


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("restored_threads")
def test_with_torch_the_number_is_that_of_torch():
    set_num_threads(3)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(2)
    assert get_num_threads() == 2


def test_without_torch_each_thread_has_its_own_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    numbers = []

    def run() -> None:
        numbers.append(get_num_threads())
        set_num_threads(1)
        numbers.append(get_num_threads())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert numbers == [5, 1]
