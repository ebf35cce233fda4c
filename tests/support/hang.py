"""A guard against tests that hang: an alarm that ends them with an error. It measures nothing."""

import contextlib
import signal


@contextlib.contextmanager
def no_hang(seconds=60):
    """Raise TimeoutError in the body after so many seconds, far more than it needs."""

    def end(*_):
        raise TimeoutError(f"not done after {seconds} s, which it should be in a few")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
