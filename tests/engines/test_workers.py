"""Parallel batches: order of results, one core per job, bounded look-ahead, errors, and torch's threads restored."""

import threading

import pytest
import torch

from bertworks.engines.workers import map_parallel


@pytest.fixture
def two_threads():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_are_in_the_order_of_the_jobs(count: int):
    assert list(map_parallel(range(count), lambda job: job * job, 2)) == [job * job for job in range(count)]


@pytest.mark.usefixtures("two_threads")
def test_two_jobs_run_in_parallel_on_one_core_each():
    barrier = threading.Barrier(2, timeout=20)  # passes only if two jobs run at the same time

    def wait(job: int) -> int:
        barrier.wait()
        return torch.get_num_threads()

    assert list(map_parallel(range(4), wait, 2)) == [1, 1, 1, 1]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_single_job_runs_in_the_calling_thread_with_all_cores():
    results = list(map_parallel(["job"], lambda job: (threading.current_thread(), torch.get_num_threads()), 2))
    assert results == [(threading.current_thread(), 2)]


@pytest.mark.usefixtures("two_threads")
def test_look_ahead_is_bounded():
    started: list[int] = []

    def jobs():
        for job in range(100):
            started.append(job)
            yield job

    results = map_parallel(jobs(), lambda job: job, 2)
    assert next(results) == 0
    assert len(started) <= 3
    results.close()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_reaches_the_caller():
    def fail(job: int) -> int:
        if job == 2:
            raise ValueError("job 2")
        return job

    with pytest.raises(ValueError, match="job 2"):
        list(map_parallel(range(9), fail, 2))
    assert torch.get_num_threads() == 2
