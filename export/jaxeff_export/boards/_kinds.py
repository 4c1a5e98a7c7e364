"""Kinds of boards, and which of them can be used on this machine.

```python
from jaxeff_export.boards import board_kinds

for kind in board_kinds():                               # as `jaxeff-export boards` shows them
    print(kind.name, kind.missing or kind.what)
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxeff_export.boards._board import BoardError
from jaxeff_export.boards._emulated import require_emulator
from jaxeff_export.targets import MissingExtraError, ToolchainError, require_extra


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
    """Lists all kinds; whether a particular board at an address answers is not asked."""
    has_tvm = _missing(lambda: require_extra("tvm", "a board"))
    emulated = has_tvm or _missing(require_emulator)
    return (
        BoardKind("local", "this process", has_tvm),
        BoardKind("rpc://host:port", "a machine running python -m tvm.exec.rpc_server", has_tvm),
        BoardKind(
            "rpc://tracker:port/key",
            "any free machine registered at a python -m tvm.exec.rpc_tracker",
            has_tvm,
        ),
        BoardKind("emulated[:core]", "a core in software, never for timing", emulated),
    )


def _missing(require: Callable[[], object]) -> str | None:
    try:
        require()
    except (MissingExtraError, ToolchainError, BoardError) as error:
        return str(error)
    return None
