"""A board at the other end of a serial line, whose firmware has ``NAME_serial.c`` of a C library.

A request is sent again until its answer comes, so it may arrive twice: writing and reading are the
same twice, and a run has a number by which its second request is known. Every frame has a CRC-32,
and so have the arguments of a run, which the board computes of what lies in its memory: what has
changed of them is uploaded, and after a reset, or where a write went wrong, all of them. Results
are read by the run's number, so that none of before a reset are taken for those of this call.
Frames stand between marks of SLIP (RFC 1055): behind a damaged one the next mark begins a new one,
without a clock on the board.

Sharp edges:
    State comes back with each call, since a reset may lose it; it is sent where the board has
    another.
    Two firmwares of one model that were built with different flags have the same hash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shlex
import struct
import subprocess
import tempfile
import time
import urllib.parse
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, TypeVar

import numpy as np

from jaxeff.core import instance_of, validate
from jaxeff_export import targets
from jaxeff_export.boards._board import Board, BoardError, BoardLost

_T = TypeVar("_T")

SERIAL = "serial:"
BAUD, TIMEOUT = 115200, 10.0
_ATTEMPTS = 5
_VERSION, _LITTLE_ENDIAN = 1, b"\1\2\3\4"
_END, _ESCAPE = b"\xc0", b"\xdb"
_HELLO, _WRITE, _RUN, _READ, _ANSWER = 1, 2, 3, 4, 128
_DONE, _OTHER_ARGUMENTS, _NO_SUCH_RUN, _FAILED = 0, 3, 4, 5
_RESULTS, _COUNTS, _KERNELS = 0, 1, 2
_FRAME = 32  # bytes that a frame costs besides its data, with its answer
_FIRST_WAIT = 0.25  # seconds until a request is sent again, and twice as long every time after


class Port(Protocol):
    """What is used of pyserial's ``Serial``: any other line of bytes may take its place."""

    timeout: float | None

    @property
    def in_waiting(self) -> int:
        """Number of bytes that have come."""

    def read(self, size: int = 1) -> bytes:
        """Reads at most so many bytes, fewer when the time-out is over."""

    def write(self, data: bytes, /) -> Any:
        """Sends bytes."""

    def close(self) -> None:
        """Closes the line."""


@dataclasses.dataclass(frozen=True)
class Firmware:
    """What a board says of its firmware.

    Attributes:
      model: hash of the bundle that it was exported from.
      name: prefix of its names in C.
      target: the processor it was compiled for.
      payload: bytes of a request at most.
      hertz: counts of its counter in a second; 0 if it doesn't know.
      arguments: bytes of all arguments.
      results: bytes of all results.
      steps: number of calls of kernels.
      names: bytes of the kernels' names; 0 if it doesn't count by kernel.
    """

    model: str
    name: str
    target: str
    payload: int
    hertz: int
    arguments: int
    results: int
    steps: int
    names: int

    def __str__(self) -> str:
        return f"{self.name} (for {self.target}, model {self.model})"


@dataclasses.dataclass(frozen=True)
class BoardRun:
    """Outcome of a run on the board.

    Attributes:
      results: the bytes of all results, one after the other.
      cycles: what all its calls took, by the board's counter.
      steps: of these by each call of a kernel; empty if the firmware doesn't count by kernel.
    """

    results: bytes
    cycles: int
    steps: tuple[int, ...] = ()


class SerialBoard(Board):
    """A microcontroller on a serial line.

    Args:
      place: the port, such as ``"/dev/ttyACM0"``, ``"COM3"`` or one of pyserial's URLs.
      baud: bits per second.
      timeout: seconds after which a board that says nothing is given up.
      mhz: the rate of its counter, where the firmware doesn't know it.
      open_port: opens the line; by default pyserial does.
    """

    def __init__(
        self,
        place: str,
        *,
        baud: int = BAUD,
        timeout: float = TIMEOUT,
        mhz: float | None = None,
        open_port: Callable[[], Port] | None = None,
    ) -> None:
        super().__init__()
        self.place, self.baud, self.timeout = place, baud, timeout
        self.name = f"{SERIAL}{place}"
        self.resent = self.resets = 0
        self._hertz = None if mhz is None else mhz * 1e6
        self._open_port = open_port or (lambda: open_serial(place, baud))
        self._port: Port | None = None
        self._unread, self._heard = b"", 0
        self._sequence = random.randrange(1, 1 << 16)
        self._firmware: Firmware | None = None
        self._there: bytes | None = None  # arguments that the board has, if nothing lost them

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Reads ``serial:/dev/ttyACM0?baud=115200&timeout=10&mhz=216``.

        Raises:
          BoardError: if it names no port, or something else is set.
        """
        place, _, query = name.removeprefix(SERIAL).partition("?")
        known = {"baud": int, "timeout": float, "mhz": float}
        chosen: dict[str, Any] = {}
        for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
            try:
                chosen[key] = known[key](value)
                if not 0 < chosen[key] < 1e9:
                    raise ValueError(value)
            except (KeyError, ValueError) as error:
                raise BoardError(
                    f"board {name!r}: {key}={value} sets nothing; write "
                    f"{SERIAL}{place or '/dev/ttyACM0'}?baud=115200&timeout=10&mhz=216, of which "
                    "each may be left out"
                ) from error
        if not place:
            raise BoardError(f"board {name!r} names no port: write {SERIAL}/dev/ttyACM0")
        return cls(place, **chosen)

    def __enter__(self) -> Self:
        self._port = self._open_port()
        try:
            self._greet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: Any) -> None:
        """Closes the line; the board goes on to listen."""
        port, self._port, self._firmware = self._port, None, None
        if port is not None:
            with contextlib.suppress(OSError):
                port.close()

    @property
    def device(self) -> Any:
        """None of TVM's."""
        raise BoardError(f"{self.name} runs its firmware; TVM knows no device there")

    def load(self, library: Path) -> Any:
        """Refuses: a firmware is flashed."""
        raise BoardError(f"{self.name} runs its firmware and loads no library; flash one")

    @property
    def firmware(self) -> Firmware:
        """What the board said of itself when it was asked last."""
        if self._firmware is None:
            raise BoardError(f"{self.name} is not open; use it inside its with statement")
        return self._firmware

    @property
    def hertz(self) -> float:
        """Counts of its counter in a second.

        Raises:
          BoardError: if nobody knows.
        """
        hertz = self._hertz or self.firmware.hertz
        if not hertz:
            raise BoardError(
                f"{self.name}: nobody knows the rate of its counter: let "
                f"{self.firmware.name}_serial_hertz return it, or write {self.name}?mhz=216"
            )
        return hertz

    def require_model(self, model: str) -> None:
        """Refuses a firmware of another model, by its name.

        Raises:
          BoardError: if it is one.
        """
        theirs = self.firmware
        if theirs.model != model:
            raise BoardError(
                f"{self.name} runs the firmware {theirs}, not this bundle's (model {model}): "
                "export it (jaxeff-export c), build and flash it (--flash), or name the bundle "
                "that the firmware is of"
            )

    def run(
        self,
        model: str,
        arguments: bytes,
        repetitions: int = 1,
        places: Sequence[tuple[int, int, int]] = (),
    ) -> BoardRun:
        """Calls the function on the board; again from the beginning where it was reset meanwhile.

        Sends what differs from what the board has: a checksum of all arguments tells.

        Args:
          model: hash of the model that the firmware has to be of.
          arguments: the bytes of all arguments, one after the other.
          repetitions: number of calls on them.
          places: of a state that the board updates where it lies, the first byte among the
            arguments, that among the results, and the number of bytes.

        Raises:
          BoardError: if the firmware is of another model, fails, or the board is lost for good.
        """

        def attempt() -> BoardRun:
            self.require_model(model)
            done = self._run(arguments, repetitions)
            left = bytearray(arguments)
            for old, new, size in places:
                left[old : old + size] = done.results[new : new + size]
            self._there = bytes(left)
            return done

        return self._until_done(attempt)

    def _until_done(self, action: Callable[[], _T]) -> _T:
        """Repeats an action that a reset of the board cuts short."""
        lost: list[str] = []
        while True:
            try:
                if lost:
                    self._recover()
                return action()
            except BoardLost as error:
                lost.append(str(error))
                if len(lost) == _ATTEMPTS:
                    raise BoardError(
                        f"{lost[-1]}, the {len(lost)}th time in one call: a watchdog, a fault of "
                        "the program, or the power may reset it"
                    ) from error

    def kernels(self) -> tuple[str, ...]:
        """Names the kernels whose calls the firmware counts, in order.

        Raises:
          BoardError: if it counts none.
        """
        if not self.firmware.names:
            n = self.firmware.name
            raise BoardError(
                f"{self.name}: its firmware does not count by kernel: build {n}.c and "
                f"{n}_serial.c with -D{n.upper()}_PROFILE"
            )
        text = self._until_done(lambda: self._read(0, _KERNELS, self.firmware.names))
        names = text.decode("ascii").splitlines()
        if len(names) != self.firmware.steps:
            raise BoardError(f"{self.name} names {len(names)} of {self.firmware.steps} kernels")
        return tuple(names)

    def _run(self, arguments: bytes, repetitions: int) -> BoardRun:
        firmware, number = self.firmware, random.randrange(1, 1 << 32)
        if len(arguments) != firmware.arguments:
            raise BoardError(
                f"{self.name} takes {firmware.arguments} bytes of arguments, not {len(arguments)}"
            )
        request = struct.pack("<3I", number, zlib.crc32(arguments), repetitions)
        known, self._there = self._there, None  # nobody's guess, until they are all there
        status, data = _OTHER_ARGUMENTS, b""
        if known in (None, arguments):
            status, data = self._exchange(_RUN, request, self.timeout * repetitions)
        # What differs; everything, where something else had been there, or nothing since a reset.
        for before in dict.fromkeys((known, None)):
            if status == _OTHER_ARGUMENTS:
                self._write(arguments, before)
                status, data = self._exchange(_RUN, request, self.timeout * repetitions)
        if status == _OTHER_ARGUMENTS:
            raise BoardLost(f"{self.name} lost its arguments")
        if status == _FAILED:
            raise BoardError(
                f"{self.name}: {firmware.name}_run returned {data[0]}, see {firmware.name}.h"
            )
        self._require_done(_RUN, status)
        (cycles,) = struct.unpack("<Q", data)
        results = self._read(number, _RESULTS, firmware.results)
        steps: tuple[int, ...] = ()
        if firmware.names:
            counts = self._read(number, _COUNTS, 8 * firmware.steps)
            steps = struct.unpack(f"<{firmware.steps}Q", counts)
        return BoardRun(results, cycles, steps)

    def _write(self, arguments: bytes, before: bytes | None) -> None:
        """Writes the arguments where they differ from those before."""
        begins, ends = [0], [len(arguments)]
        if before is not None:
            new, old = (np.frombuffer(part, np.uint8) for part in (arguments, before))
            differs = np.flatnonzero(new != old)
            # A frame costs some bytes of its own: short pieces that are equal go with the others.
            gaps = np.flatnonzero(np.diff(differs) > _FRAME)
            begins, ends = [*differs[:1], *differs[gaps + 1]], [*differs[gaps], *differs[-1:]]
            ends = [end + 1 for end in ends]
        size = self.firmware.payload - 4
        for first, last in zip(begins, ends, strict=True):
            for begin in range(first, last, size):
                piece = arguments[begin : min(begin + size, last)]
                self._ask(_WRITE, struct.pack("<I", begin) + piece)

    def _read(self, number: int, space: int, size: int) -> bytes:
        """Reads so many bytes of what a run left, or of the kernels' names."""
        data, step = bytearray(), min(self.firmware.payload, 1 << 15)
        while len(data) < size:
            count = min(step, size - len(data))
            request = struct.pack("<IBIH", number, space, len(data), count)
            status, piece = self._exchange(_READ, request)
            if status == _NO_SUCH_RUN:
                raise BoardLost(f"{self.name} was reset")
            self._require_done(_READ, status)
            data += piece
        return bytes(data)

    def _ask(self, kind: int, payload: bytes) -> bytes:
        status, data = self._exchange(kind, payload)
        self._require_done(kind, status)
        return data

    def _require_done(self, kind: int, status: int) -> None:
        if status != _DONE:
            raise BoardError(
                f"{self.name} refuses a request (kind {kind}, status {status}): its "
                f"{self.firmware.name}_serial.c is not of this version; export and build it again"
            )

    def _greet(self) -> None:
        """Asks for the firmware."""
        status, data = self._exchange(_HELLO, b"")
        try:
            version, order, *numbers = struct.unpack("<H4s4IHI", data[:28])
            model, name, target = data[28:].decode("ascii").split(" ")
        except (ValueError, struct.error) as error:
            raise BoardError(f"{self.name} says hello in no form that is known here") from error
        if status != _DONE or version != _VERSION:
            raise BoardError(
                f"{self.name} speaks version {version} of the protocol, not {_VERSION}: export and "
                "build its firmware again"
            )
        if order != _LITTLE_ENDIAN:
            raise BoardError(
                f"{self.name}: the arrays of its processor begin with the highest byte, which "
                "isn't supported over a serial line"
            )
        self._firmware = Firmware(model, name, target, *numbers)

    def _recover(self) -> None:
        """Asks a board that was reset again, after opening a port that went away with it."""
        self.resets += 1
        self._there = None
        if self._port is None:
            end = time.monotonic() + self.timeout
            while self._port is None:
                try:
                    self._port = self._open_port()
                except BoardError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(_FIRST_WAIT)
        self._greet()

    def _exchange(
        self, kind: int, payload: bytes, timeout: float | None = None
    ) -> tuple[int, bytes]:
        """Sends a request until its answer comes: a status, and what follows it.

        Raises:
          BoardLost: if the board was reset meanwhile, or the port went away.
          BoardError: if nothing comes.
        """
        self._sequence = self._sequence % 0xFFFF + 1  # never 0, which is no request's
        header = struct.pack("<BHH", kind, self._sequence, len(payload))
        sent = _frame(header + payload)
        begun = time.monotonic()
        limit = begun + (self.timeout if timeout is None else timeout)
        # A line of ten bits a byte; what is answered may be as long as the longest frame.
        wait = _FIRST_WAIT + 10 * (len(sent) + 1024) / self.baud
        self._heard = 0
        try:
            while time.monotonic() < limit:
                self._open_line.write(sent)
                until = min(time.monotonic() + wait, limit)
                while (frame := self._next(until)) is not None:
                    if frame[0] == kind | _ANSWER and frame[1] == self._sequence:
                        return frame[2][0], frame[2][1:]
                    if frame[:2] == (_HELLO | _ANSWER, 0):  # said by itself, at its start
                        if kind == _HELLO:
                            return frame[2][0], frame[2][1:]
                        raise BoardLost(f"{self.name} was reset")
                self.resent += 1
                wait *= 2
        except OSError as error:  # pyserial's are of this kind
            port, self._port = self._port, None
            if port is not None:
                with contextlib.suppress(OSError):
                    port.close()
            raise BoardLost(f"{self.name} went away: {error}") from error
        self._give_up(time.monotonic() - begun)

    @property
    def _open_line(self) -> Port:
        if self._port is None:
            raise BoardError(f"{self.name} is not open; use it inside its with statement")
        return self._port

    def _give_up(self, seconds: float) -> NoReturn:
        where = f"{self.name} at {self.baud} baud"
        if self._heard:
            raise BoardError(
                f"{where} sent {self._heard} bytes in {seconds:.3g} s, and no whole answer: its "
                f"rate may be another ({self.name}?baud=9600), or its program prints on the line"
            )
        raise BoardError(
            f"{where} said nothing in {seconds:.3g} s: does it run a firmware with NAME_serial.c "
            f"(jaxeff-export c writes it), is this its rate ({self.name}?baud=9600) and its port, "
            f"do TX and RX cross? A slow board: {self.name}?timeout=60"
        )

    def _next(self, until: float) -> tuple[int, int, bytes] | None:
        """Reads the next whole frame: kind, sequence number, payload; None if none comes in time.

        Damaged ones are left out.
        """
        port = self._open_line
        while True:
            raw, mark, rest = self._unread.partition(_END)
            if mark:
                self._unread = rest
                if (frame := _unframed(raw)) is not None:
                    return frame
                continue
            left = until - time.monotonic()
            if left <= 0:
                return None
            port.timeout = left
            data = port.read(max(1, port.in_waiting))
            self._heard += len(data)
            self._unread += data


def open_serial(place: str, baud: int = BAUD) -> Port:
    """Opens a serial port by pyserial.

    ```python
    from jaxeff_export.boards import open_serial

    port = open_serial("loop://", 921600)                    # "/dev/ttyACM0"; this one echoes
    port.write(b"a")
    assert port.read(1) == b"a"
    ```

    Args:
      place: the port, such as ``"/dev/ttyACM0"``, ``"COM3"`` or one of pyserial's URLs.
      baud: bits per second.

    Raises:
      BoardError: if it does not open.
      MissingExtraError: if pyserial isn't installed.
    """
    targets.require_extra("serial", "a board on a serial line")
    # Of an extra: other boards do without.
    import serial
    from serial.tools import list_ports

    try:
        port: Port = serial.serial_for_url(place, baudrate=baud, write_timeout=10)
    except (OSError, ValueError) as error:
        here = ", ".join(sorted(port.device for port in list_ports.comports())) or "none"
        raise BoardError(
            f"{SERIAL}{place} at {baud} baud does not open: {error}. Ports of this machine: "
            f"{here}; on Linux the group of a port (mostly dialout) may open it"
        ) from error
    return port


def _frame(content: bytes) -> bytes:
    """Puts a frame between marks, with its CRC."""
    content += struct.pack("<I", zlib.crc32(content))
    escaped = content.replace(_ESCAPE, b"\xdb\xdd").replace(_END, b"\xdb\xdc")
    # A mark in front as well: what was noise before it is a frame of its own.
    return _END + escaped + _END


def _unframed(raw: bytes) -> tuple[int, int, bytes] | None:
    """Reads what stood between two marks; None where it is damaged."""
    content = raw.replace(b"\xdb\xdc", _END).replace(b"\xdb\xdd", _ESCAPE)
    if len(content) < 10:  # an answer has a status
        return None
    kind, sequence, length = struct.unpack("<BHH", content[:5])
    (check,) = struct.unpack("<I", content[-4:])
    if length != len(content) - 9 or check != zlib.crc32(content[:-4]):
        return None
    return kind, sequence, content[5:-4]


@validate(command=instance_of(str), image=instance_of(Path, type(None)), board=instance_of(str))
def flash_firmware(command: str, *, image: Path | None = None, board: str = "") -> None:
    """Runs a command that flashes a board.

    ```python
    from jaxeff_export.boards import flash_firmware

    flash_firmware("echo program {port}", board="serial:/dev/ttyACM0")   # program /dev/ttyACM0
    ```

    Args:
      command: the command, split as a shell does and run without one; ``{image}`` in it becomes the
        image, ``{port}`` the port.
      image: the file that it flashes.
      board: name of the board, ``"serial:/dev/ttyACM0"``.

    Raises:
      BoardError: if it fails, there is no such program, the image is missing, or the command has no
        place for it.
    """
    if "{image}" in command and image is None:
        raise BoardError(f"the flash command {command!r} takes an {{image}}: name it (--image)")
    if "{image}" not in command and image is not None:
        raise BoardError(
            f"the flash command {command!r} has no {{image}}, which {image} would stand for: write "
            "it there, or leave the image out"
        )
    if image is not None and not image.is_file():
        raise BoardError(f"there is no image {image}; build the firmware first")
    port = board.removeprefix(SERIAL).partition("?")[0]
    try:
        words: Sequence[str] = [
            word.replace("{image}", str(image)).replace("{port}", port)
            for word in shlex.split(command)
        ]
        # A file: whoever waits for the end of a pipe waits for all that the command starts, too.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False
            )
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
    except (OSError, ValueError, IndexError) as error:
        raise BoardError(f"the flash command {command!r} can't be run: {error}") from error
    if done.returncode:
        told = " / ".join(lines[-3:]) or "it said nothing"
        raise BoardError(f"the flash command ended with status {done.returncode}: {told}")
