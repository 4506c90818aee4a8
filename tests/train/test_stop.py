import signal

import pytest

from gatelm.train.stop import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish(number):
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert not stop.requested()
        signal.raise_signal(number)
        assert stop.requested()
    assert signal.getsignal(number) is before


def test_the_second_signal_interrupts():
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
