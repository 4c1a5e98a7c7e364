"""Ctrl-C while TVM works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block.

    TVM's runners and builders come back to Python from C++, which turns a ``KeyboardInterrupt``
    into an error without a name. Their processes get the signal too, so the wait is short.

    Raises:
      KeyboardInterrupt: at the end, if Ctrl-C was pressed meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt
