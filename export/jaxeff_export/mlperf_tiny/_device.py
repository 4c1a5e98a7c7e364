"""The computer's end of MLPerf Tiny's serial line, in the place of its runner.

Commands and answers are letters without a check: where bytes are lost or change, a command is sent
again, an input is compared with what the device prints of it, and results are asked for twice. The
runner of MLCommons does none of these; submissions take its logs.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from jaxeff_export.boards import BoardError, BoardLost, Port, open_serial

_ATTEMPTS = 8
_PIECE = 31  # bytes of an input in a command, as the runner sends them
_FIRST_WAIT = 1.0  # seconds until a command is sent again, other than infer
_SILENCE = 0.2  # seconds without an answer, after which none is on its way
_READY, _STARTED = "m-ready", "m-init-done"


class Inference(NamedTuple):
    """What a device says of calls on one input.

    Attributes:
      results: of the last call, to three digits behind the point.
      microseconds: that all calls took, by the device's clock.
      calls: number of them.
    """

    results: tuple[float, ...]
    microseconds: int
    calls: int

    @property
    def throughput(self) -> float:
        """Calls in a second; infinity where the clock stood still."""
        return self.calls / self.microseconds * 1e6 if self.microseconds else float("inf")


class TinyDevice:
    """A device whose firmware speaks MLPerf Tiny's protocol: `NAME_serial.c` with `-DNAME_MLPERF`.

    ```text
    with TinyDevice("/dev/ttyACM0") as device:
        device.model                                   # "ic01"
        device.infer(image.tobytes(), calls=100).results
    ```

    Args:
      place: the port, such as ``"/dev/ttyACM0"``.
      baud: bits per second.
      timeout: seconds after which a device that says nothing is given up, for each call.
      open_port: opens the line; by default pyserial does.

    Attributes:
      log: what was sent and what came, line by line.
      resent: number of commands that were sent again.
      resets: number of times that the device started anew.
    """

    def __init__(
        self,
        place: str,
        *,
        baud: int = 115200,
        timeout: float = 10.0,
        open_port: Callable[[], Port] | None = None,
    ) -> None:
        # Nothing is opened before the with statement.
        self.place, self.timeout = place, timeout
        self.log: list[str] = []
        self.resent = self.resets = 0
        self._open_port = open_port or (lambda: open_serial(place, baud))
        self._port: Port | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        self._port = self._open_port()
        self._wait_for_silence()
        return self

    def __exit__(self, *failure: Any) -> None:
        port, self._port = self._port, None
        if port is not None:
            with contextlib.suppress(OSError):
                port.close()

    @property
    def name(self) -> str:
        """Who sells it, or made it."""
        return self._find("name", r"m-name-dut-\[([^]]+)]")

    @property
    def model(self) -> str:
        """The benchmark of its network: ``"ic01"``, ``"kws01"``, ``"vww01"`` or ``"ad01"``."""
        return self._find("profile", r"m-model-\[([^]]+)]")

    def infer(self, data: bytes, calls: int = 1, warmups: int = 0) -> Inference:
        """Loads an input and runs the network on it; from the beginning after a reset.

        Args:
          data: all bytes of the input.
          calls: number of calls that are timed.
          warmups: number of calls before.

        Raises:
          BoardError: if the device refuses, or nothing comes of any attempt.
        """
        lost = ""
        for _ in range(_ATTEMPTS):
            try:
                self._load(data)
                said = self.command(f"infer {calls} {warmups}", self.timeout * (calls + warmups))
                first = _numbers(said)
                laps = [int(line[9:]) for line in said if re.fullmatch(r"m-lap-us-\d+", line)]
                # Digits may have been lost on their way, but hardly the same ones twice.
                if first and len(laps) == 2 and _numbers(self.command("results")) == first:
                    return Inference(first, laps[1] - laps[0], calls)
                lost = f"it answers {' / '.join(said)}"
            except BoardLost as error:
                lost = str(error)
        raise BoardError(f"{self.place} gives no results, {_ATTEMPTS} times: {lost}")

    def command(self, text: str, wait: float = _FIRST_WAIT) -> list[str]:
        """Sends a command until its answer comes, and returns the lines before ``m-ready``.

        Args:
          text: the command, without the ``%`` that ends it.
          wait: seconds after which it is sent again.

        Raises:
          BoardLost: if the device started anew meanwhile.
          BoardError: if nothing comes.
        """
        limit = time.monotonic() + max(self.timeout, 2 * wait)
        while time.monotonic() < limit:
            self.log.append(f"> {text}")
            self._send(f"{text}%")
            lines = self._lines(time.monotonic() + wait)
            if lines is not None and _STARTED not in lines:
                return lines
            # What was sent twice is answered twice, and the next command would get the second.
            self._wait_for_silence()
            if lines is not None:
                self.resets += 1
                raise BoardLost(f"{self.place} was reset")
            self.resent += 1
        raise BoardError(
            f"{self.place} does not answer {text!r}: does its firmware have NAME_serial.c with "
            "-DNAME_MLPERF, and is the rate the line's (baud=921600)?"
        )

    def _wait_for_silence(self) -> None:
        """Ends a command that lost its end, and drops the answers to all that was sent."""
        self._send("%")
        while self._lines(time.monotonic() + _SILENCE) is not None:
            pass
        self._unread = b""

    def _find(self, command: str, pattern: str) -> str:
        # Short answers are told apart from damaged ones by their form alone.
        said: list[str] = []
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(BoardLost):
                said = self.command(command)
            for line in said:
                if match := re.fullmatch(pattern, line):
                    return match[1]
        raise BoardError(f"{self.place} answers {command!r} by {' / '.join(said) or 'nothing'}")

    def _load(self, data: bytes) -> None:
        """Loads an input, and compares it with what is there then.

        Raises:
          BoardLost: if it is another one.
        """
        # Not the same twice: where a line is lost, all that follows lies at another place.
        said = self.command(f"db load {len(data)}")
        refused = next((line for line in said if line.startswith("e-[The network takes")), None)
        if refused is not None:
            raise BoardError(f"{self.place} takes no {len(data)} bytes: {refused}")
        # Refused lines are not asked for again: which of them came is seen at the end.
        for begin in range(0, len(data), _PIECE):
            self.command(f"db {data[begin : begin + _PIECE].hex()}")
        printed = "".join(
            line.removeprefix("m-buffer-").replace("-", "") for line in self.command("db print")
        )
        if printed != data.hex():
            raise BoardLost(f"{self.place} lost a part of its input")

    def _send(self, text: str) -> None:
        if self._port is None:
            raise BoardError(f"{self.place} is not open; use it inside its with statement")
        self._port.write(text.encode("ascii"))

    def _lines(self, until: float) -> list[str] | None:
        """Reads up to ``m-ready``; None if it doesn't come in time."""
        assert self._port is not None
        lines: list[str] = []
        # Bytes that no letter is stay in a line, so that it is none that is waited for.
        while True:
            raw, end, rest = self._unread.partition(b"\n")
            if end:
                self._unread = rest
                if line := raw.decode("ascii", "replace").strip():
                    self.log.append(line)
                    if line == _READY:
                        return lines
                    lines.append(line)
                continue
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._port.timeout = left
            self._unread += self._port.read(max(1, self._port.in_waiting))


def _numbers(lines: list[str]) -> tuple[float, ...]:
    """Reads the last results among lines; none where there are none, or they are damaged."""
    for line in reversed(lines):
        if match := re.fullmatch(r"m-results-\[([^]]+)]", line):
            with contextlib.suppress(ValueError):
                return tuple(float(number) for number in match[1].split(","))
    return ()
