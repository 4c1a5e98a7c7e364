"""A firmware that runs here or in an emulator, and a line to it that loses and changes bytes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import tty
from collections.abc import Callable, Sequence

import numpy as np

Fault = Callable[[bytes], bytes]


def noise(seed: int, lost: float = 0.0, changed: float = 0.0) -> Fault:
    """Loses and changes bytes at these rates."""
    draws = np.random.default_rng(seed)

    def fault(data: bytes) -> bytes:
        kept = np.frombuffer(data, np.uint8)[draws.random(len(data)) >= lost].copy()
        bad = draws.random(len(kept)) < changed
        kept[bad] ^= draws.integers(1, 256, bad.sum(), np.uint8)
        return kept.tobytes()

    return fault


class Line:
    """The computer's end of a pseudo-terminal whose other end is a program's input and output.

    Args:
        command: the program.
        to_board: what happens to bytes that are sent.
        from_board: what happens to bytes that come.
    """

    timeout: float | None = None

    def __init__(
        self, command: Sequence[str], to_board: Fault = bytes, from_board: Fault = bytes
    ) -> None:
        self.command = command
        self.to_board, self.from_board = to_board, from_board
        self._end, self._theirs = pty.openpty()
        tty.setraw(self._theirs)
        modes = termios.tcgetattr(self._theirs)
        modes[1] = 0  # qemu turns the processing of output on, which would write "\\r\\n"
        termios.tcsetattr(self._theirs, termios.TCSANOW, modes)
        self.place = os.ttyname(self._theirs)
        self._start()

    def _start(self) -> None:
        self._program = subprocess.Popen(self.command, stdin=self._theirs, stdout=self._theirs)

    def reset(self, command: Sequence[str] | None = None) -> None:
        """Starts the firmware, or another one, anew: its memory is lost."""
        self.command = command or self.command
        self._program.kill()
        self._program.wait()
        self._start()

    @property
    def in_waiting(self) -> int:
        number = fcntl.ioctl(self._end, termios.FIONREAD, bytes(4))
        return struct.unpack("i", number)[0]

    def read(self, size: int = 1) -> bytes:
        if not select.select([self._end], [], [], self.timeout)[0]:
            return b""
        return self.from_board(os.read(self._end, size))

    def write(self, data: bytes, /) -> None:
        data = self.to_board(data)
        while data:
            data = data[os.write(self._end, data) :]

    def close(self) -> None:
        """Leaves the firmware as it is, as a port that is closed does."""

    def end(self) -> None:
        self._program.kill()
        self._program.wait()
        for end in (self._end, self._theirs):
            with contextlib.suppress(OSError):
                os.close(end)
