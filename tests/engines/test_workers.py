"""Several batches at once: the order of the jobs, one core each, errors and callers that stop, threads given back."""

import threading

import pytest
import torch

from bertworks.engines.workers import map_parallel


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_answers_come_in_the_order_of_the_jobs(count: int):
    assert list(map_parallel(range(count), lambda job: job * job, 2)) == [job * job for job in range(count)]


@pytest.mark.usefixtures("two_threads")
def test_two_jobs_meet_each_with_one_core_and_the_caller_keeps_all():
    both = threading.Barrier(2, timeout=20)  # passes only if two are at work at the same time

    def meet(job: int) -> int:
        both.wait()
        return torch.get_num_threads()

    assert list(map_parallel(range(4), meet, 2)) == [1, 1, 1, 1]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_single_job_is_done_by_the_caller_with_all_cores():
    found = list(map_parallel(["job"], lambda job: (threading.current_thread(), torch.get_num_threads()), 2))
    assert found == [(threading.current_thread(), 2)]


@pytest.mark.usefixtures("two_threads")
def test_what_is_computed_ahead_is_bounded():
    begun: list[int] = []

    def jobs():
        for job in range(100):
            begun.append(job)
            yield job

    answers = map_parallel(jobs(), lambda job: job, 2)
    assert next(answers) == 0
    assert len(begun) <= 3
    answers.close()
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
