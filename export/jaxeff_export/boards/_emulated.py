"""Boards in software, for correctness only, and the list of all kinds of boards.

`EmulatedBoard` is qemu's user-mode emulation of a Cortex core, running TVM's RPC server. It answers
exactly as a board at ``rpc://`` does, so what runs here runs there; it executes the same
instructions a real core would, so its results hold for the real board. But the time an emulator
takes says nothing about a board, and timing on it is refused.

```python
from jaxeff_export.boards import BoardError, require_emulator
from jaxeff_export.targets import ToolchainError

try:
    print(require_emulator().folder)                     # what the board runs lies here
except (BoardError, ToolchainError) as missing:          # qemu, or the download
    print(missing)                                       # how to get it
```
"""

import contextlib
import os
import random
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from jaxeff_export import targets
from jaxeff_export.boards._board import Board, BoardError
from jaxeff_export.boards._rpc import RpcBoard
from jaxeff_export.boards._sysroot import Sysroot, prepare
from jaxeff_export.targets import arithmetic_features, find_c_toolchain, find_emulator

__all__ = [
    "CORES",
    "PROGRAM_CORES",
    "BoardKind",
    "EmulatedBoard",
    "ProgramBoard",
    "board_kinds",
    "board_of",
    "prepare",
    "require_emulator",
]

CORES = tuple(targets.ARM_TARGETS)


def require_emulator() -> Sysroot:
    """Finds what an emulated board runs, if it is set up.

    Raises:
      ToolchainError: if qemu is not installed.
      BoardError: if `prepare` was not called yet.
    """
    find_emulator()
    sysroot = Sysroot.default()
    if not sysroot.ready:
        raise BoardError(
            "the emulated board is not set up yet; this downloads it once, into "
            f"{sysroot.folder}: jaxeff_export.boards.emulated.prepare(), or jaxeff-export prepare"
        )
    return sysroot


class EmulatedBoard(Board):
    """An emulated ARM core on this machine.

    Call `prepare` once; it downloads what the board runs. Starting takes a few seconds (an emulated
    Python importing TVM's runtime), so open one board and run many bundles on it.

    Sharp edge: the emulated core has only its own instructions. A library for a newer core (A76) is
    refused on an older one (A72), where it would die; pick the core with ``emulated:cortex-a76``.

    Args:
      cpu: one of `CORES`.
      start_timeout: seconds the emulated server may take to come up.
      session_timeout: seconds after which the session is ended.
    """

    untimed_because = (
        "it is emulated: the time an emulator takes says nothing about a real board; "
        "benchmark on local or on a board at rpc://host:port"
    )
    takes_copies = True

    def __init__(
        self,
        cpu: str = "cortex-a72",
        *,
        start_timeout: float = 180.0,
        session_timeout: float = 3600.0,
    ) -> None:
        super().__init__()
        if cpu not in CORES:
            raise BoardError(f"no emulated core {cpu!r}; there are {', '.join(CORES)}")
        self.cpu = cpu
        self.name = f"emulated:{cpu}"
        self.machine = "aarch64"
        self._target = targets.ARM_TARGETS[cpu]
        self._start_timeout = start_timeout
        self._session_timeout = session_timeout
        self._server: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._remote: RpcBoard | None = None

    def __enter__(self) -> Self:
        if self._server is not None:
            raise BoardError(f"{self.name} is open already")
        sysroot = require_emulator()
        try:
            port = self._start(sysroot)
            remote = RpcBoard(
                "127.0.0.1",
                port,
                connect_timeout=self._start_timeout,
                session_timeout=self._session_timeout,
            )
            self._remote = remote.__enter__()
        # At an interrupt too, the emulator must not be left running.
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *failure: Any) -> None:
        """Ends the session and kills the emulator with everything it started."""
        try:
            if self._remote is not None:
                self._remote.__exit__(*failure)
        finally:
            self._stop()

    @property
    def device(self) -> Any:
        """The emulated CPU."""
        return self._connected().device

    def load(self, library: Path) -> Any:
        """Uploads the library and loads it into the emulated machine."""
        return self._connected().load(library)

    def missing_features(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists what the emulated core does not have."""
        return tuple(sorted(arithmetic_features(target) - arithmetic_features(self._target)))

    def failure(self, error: Exception, started: float) -> BoardError:
        """Adds what the emulated server printed last, which describes the crash itself."""
        reason = self._connected().failure(error, started)
        last = self._last_words()
        return BoardError(f"{reason} ({last})" if last else str(reason))

    def _connected(self) -> RpcBoard:
        if self._remote is None:
            raise BoardError(f"{self.name} is not running; use it in a with statement")
        return self._remote

    def _start(self, sysroot: Sysroot) -> int:
        """Starts the server and returns its port."""
        script = Path(__file__).with_name("_device_server.py")
        # Boards that start at the same moment begin their search for a port at different places.
        first = random.SystemRandom().randrange(20000, 60000, 100)
        # A file, not a pipe: nobody reads it while the server runs, and a full pipe would block.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _stop)
        self._server = subprocess.Popen(
            sysroot.command(self.cpu, [str(script), str(first), str(first + 100)]),
            # The pipe to its standard input closes when this process ends, by whatever death: the
            # server then ends too. A session of its own, so that all it starts can be killed at
            # once.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=sysroot.environment(),
            start_new_session=True,
        )
        assert self._server.stdout is not None
        deadline = time.monotonic() + self._start_timeout
        # Whatever is there is read: a whole line would be waited for without a time limit.
        said = b""
        while not said.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._server.stdout], [], [], left)
            if not readable:
                raise BoardError(
                    f"{self.name}: the server did not start within {self._start_timeout:g} s"
                )
            piece = os.read(self._server.stdout.fileno(), 4096)
            if not piece:
                raise BoardError(
                    f"{self.name}: the server ended while starting: "
                    f"{self._last_words() or 'it said nothing'}; "
                    f"if it persists, delete {sysroot.folder}"
                )
            said += piece
        return int(said.split()[-1])

    def _stop(self) -> None:
        server, self._server = self._server, None
        self._remote = None
        if server is not None:
            assert server.stdin is not None
            assert server.stdout is not None
            with contextlib.suppress(OSError):
                server.stdin.close()  # the server ends its sessions, then itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(timeout=5.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            server.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_words(self) -> str:
        if self._log is None:
            return ""
        if self._server is not None:
            # A server that is crashing may still be writing why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=0.2)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


PROGRAM_CORES = tuple(targets.C_TARGETS)

_UNITS = frozenset({"fp64", "neon", "d", "f", "c"})
"""LLVM's names of what code for one core may use and another of its kind may lack."""


class ProgramBoard(Board):
    """An emulated processor that runs whole programs.

    `ProgramBoard` is for processors that TVM's runtime isn't there for. A call builds a program
    around a C library and runs it under qemu: a user's program on 32-bit ARM and RISC-V, all that
    runs on a microcontroller.

    Args:
      core: one of `PROGRAM_CORES`, or a microcontroller of your own.
    """

    untimed_because = EmulatedBoard.untimed_because

    def __init__(self, core: str | targets.Processor) -> None:
        super().__init__()
        if isinstance(core, str) and core not in targets.C_TARGETS:
            raise BoardError(
                f"no emulated core {core!r}; there are {', '.join(PROGRAM_CORES)}, and any "
                "jaxeff_export.Processor"
            )
        self.target = targets.C_TARGETS[core] if isinstance(core, str) else core
        self.core = core if isinstance(core, str) else core.name
        self.name = f"emulated:{self.core}"
        self.machine = targets.target_machine(self.target)

    def __enter__(self) -> Self:
        # What running needs is looked for here, not only when a program was compiled.
        try:
            find_c_toolchain(self.target)
            targets.emulation(self.core, self.target, Path("program"))
        except targets.ToolchainError as error:
            raise BoardError(f"{self.name}: {error}") from error
        return self

    def __exit__(self, *failure: Any) -> None:
        """Does nothing: a program ends with its call."""

    @property
    def device(self) -> Any:
        """None of TVM's."""
        raise BoardError(f"{self.name} runs whole programs; TVM knows no device there")

    def load(self, library: Path) -> Any:
        """Refuses: there is nothing that a library could be loaded into."""
        raise BoardError(f"{self.name} runs whole programs and loads no library")

    def missing_features(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists what code for another core of this architecture needs and this core lacks."""
        from tvm.target import codegen

        # Asked of LLVM: what a core has follows from its name as well as from attributes.
        def units(of: Mapping[str, Any]) -> frozenset[str]:
            features = codegen.llvm_get_cpu_features(targets.tvm_target(of))
            return _UNITS & {str(feature) for feature in features}

        return tuple(sorted(units(target) - units(self.target)))


def board_of(target: Mapping[str, Any]) -> Board:
    """Makes the emulated board of a target's processor; a Cortex-A72 for one without."""
    cpu, cores = target.get("mcpu"), targets.C_TARGETS.items()
    if cpu in CORES:
        return EmulatedBoard(cpu)
    core = targets.processor_of(target) or next((n for n, t in cores if t["mcpu"] == cpu), None)
    return EmulatedBoard("cortex-a72") if core is None else ProgramBoard(core)


@dataclass(frozen=True)
class BoardKind:
    """A kind of board.

    Attributes:
      name: form of the name that requests such a board.
      what: place where code runs on it.
      missing: why it cannot be used here, and the way out; None if it can.
    """

    name: str
    what: str
    missing: str | None


def board_kinds() -> tuple[BoardKind, ...]:
    """Lists all kinds; whether a particular board at an address answers is not asked.

    ```python
    from jaxeff_export.boards import board_kinds

    for kind in board_kinds():                               # as `jaxeff-export boards` shows them
        print(kind.name, kind.missing or kind.what)
    ```
    """
    has_tvm = _missing(lambda: targets.require_extra("tvm", "a board"))
    emulated = has_tvm or _missing(require_emulator)
    return (
        BoardKind("local", "this process", has_tvm),
        BoardKind("rpc://host:port", "a machine running python -m tvm.exec.rpc_server", has_tvm),
        BoardKind(
            "rpc://tracker:port/key",
            "any free machine registered at a python -m tvm.exec.rpc_tracker",
            has_tvm,
        ),
        BoardKind(
            "serial:port",
            "a microcontroller whose firmware has NAME_serial.c of a C library",
            _missing(lambda: targets.require_extra("serial", "a board on a serial line")),
        ),
        BoardKind("emulated[:core]", "a core in software, never for timing", emulated),
    )


def _missing(require: Callable[[], object]) -> str | None:
    try:
        require()
    except (targets.MissingExtraError, targets.ToolchainError, BoardError) as error:
        return str(error)
    return None
