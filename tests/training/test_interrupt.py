"""Stop signals: requests to stop, and the handlers that are there afterwards."""

import os
import signal

import pytest

from bertworks.training.interrupt import STOP_MESSAGE, catch_stop_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_to_stop_and_a_second_one_an_interrupt(number):
    before = signal.getsignal(number)
    with catch_stop_signals() as messages:
        os.kill(os.getpid(), number)
        assert messages == [STOP_MESSAGE]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_run_that_is_closed_late_leaves_the_handlers_of_a_later_one():
    before = signal.getsignal(signal.SIGTERM)
    abandoned = catch_stop_signals()
    abandoned.__enter__()
    with catch_stop_signals() as messages:
        abandoned.__exit__(None, None, None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert messages == [STOP_MESSAGE]
    signal.signal(signal.SIGTERM, before)
