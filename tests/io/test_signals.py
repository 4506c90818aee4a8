import signal

import pytest

from gatelm.io.signals import StopSignals


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


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no closed terminals here")
def test_a_closed_terminal_is_a_wish_that_may_come_twice():
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert stop.received == [signal.SIGHUP]
        assert stop.exit_status == 128 + signal.SIGHUP


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested()
    finally:
        signal.signal(signal.SIGHUP, before)
