"""Boards: where compiled libraries run, and how they are reached.

``"local"`` is this process, ``"rpc://host:port"`` a machine that runs TVM's RPC server,
``"rpc://host:port/key"`` any free board that registered with a tracker under that key, and
``"emulated"`` a core in software (``"emulated:cortex-a53"``, ``"emulated:cortex-m7"`` name it).
``"serial:/dev/ttyACM0"`` is a microcontroller whose firmware has a library's ``NAME_serial.c``.
``"probe:/dev/ttyACM0"`` is a board of an installed package whose metadata has an entry point
``probe`` in the group `jaxeff.boards`: a function from what stands behind the colon to a `Board`.

```python
from jaxeff_export.boards import make_board

board = make_board("emulated", target={"mcpu": "cortex-a53"})  # not started yet
assert board.name == "emulated:cortex-a53" and "emulated" in board.untimed_because
assert make_board(board) is board                       # wherever a name may stand, a board may
with make_board("local") as here:
    assert here.untimed_because is None                 # its timings mean something
```
"""

from collections.abc import Mapping
from typing import Any

from jaxeff.core import instance_of, plugins, validate
from jaxeff_export.boards import _emulated
from jaxeff_export.boards._board import Board as Board
from jaxeff_export.boards._board import BoardError as BoardError
from jaxeff_export.boards._board import BoardLost as BoardLost
from jaxeff_export.boards._emulated import CORES, PROGRAM_CORES, board_of
from jaxeff_export.boards._emulated import EmulatedBoard as EmulatedBoard
from jaxeff_export.boards._emulated import ProgramBoard as ProgramBoard
from jaxeff_export.boards._emulated import board_kinds as board_kinds
from jaxeff_export.boards._emulated import require_emulator as require_emulator
from jaxeff_export.boards._local import LocalBoard as LocalBoard
from jaxeff_export.boards._rpc import RpcBoard as RpcBoard
from jaxeff_export.boards._rpc import TrackedBoard as TrackedBoard
from jaxeff_export.boards._serial import SERIAL
from jaxeff_export.boards._serial import BoardRun as BoardRun
from jaxeff_export.boards._serial import Firmware as Firmware
from jaxeff_export.boards._serial import Port as Port
from jaxeff_export.boards._serial import SerialBoard as SerialBoard
from jaxeff_export.boards._serial import flash_firmware as flash_firmware
from jaxeff_export.boards._serial import open_serial as open_serial
from jaxeff_export.runtime import run_on_threads as run_on_threads

emulated = _emulated

PLUGINS = "jaxeff.boards"
"""Group of entry points of boards from other packages."""


@validate(spec=instance_of(str, Board), target=instance_of(Mapping))
def make_board(spec: str | Board, *, target: Mapping[str, Any] | None = None) -> Board:
    """Makes the board of a name, not yet connected; a `Board` is passed through.

    Args:
      spec: ``"local"``, ``"rpc://host:port"``, ``"rpc://host:port/key"``, ``"emulated"``,
        ``"emulated:<core>"``, ``"serial:/dev/ttyACM0?baud=115200&timeout=10&mhz=216"`` (what
        follows the port may be left out), ``"<plug-in>"`` or ``"<plug-in>:<place>"`` of an
        installed package, or a `Board`.
      target: the target whose processor a bare ``"emulated"`` stands for, if one is emulated.
    """
    if isinstance(spec, Board):
        return spec
    if spec == "local":
        return LocalBoard()
    if spec.startswith("rpc://"):
        return RpcBoard.from_url(spec)
    if spec == "emulated":
        return board_of(target or {})
    if spec.startswith("emulated:"):
        core = spec.partition(":")[2]
        if core not in (*CORES, *PROGRAM_CORES):
            known = ", ".join((*CORES, *PROGRAM_CORES))
            raise BoardError(f"no emulated core {core!r}; there are {known}")
        return ProgramBoard(core) if core in PROGRAM_CORES else EmulatedBoard(core)
    if spec.startswith(SERIAL):
        return SerialBoard.from_name(spec)
    scheme, _, place = spec.partition(":")
    installed = plugins(PLUGINS)
    if scheme in installed:
        board = installed[scheme].load()(place)
        if not isinstance(board, Board):
            value = installed[scheme].value
            raise BoardError(f"board {spec!r}: {value} returned no Board, but {board!r}")
        return board
    others = "".join(f", {name}:<place>" for name in sorted(installed))
    raise BoardError(
        f"unknown board {spec!r}: use local, emulated, emulated:<core>, serial:<port>, "
        f"rpc://host:port, or rpc://tracker:port/key{others}"
    )
