"""Asking TVM's tracker for a free board.

TVM's own client of the tracker waits for a board without end, and for the tracker for a minute; so
it is asked with TVM's messages, but over a socket that times out.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from jaxeff_export.boards._board import BoardError
from jaxeff_export.boards._connecting import Address


def request_board(tracker: Address, key: str, *, timeout: float, name: str) -> tuple[Address, str]:
    """Asks a tracker for a free board.

    Args:
      tracker: host and port of TVM's RPC tracker.
      key: the boards' device key.
      timeout: seconds to wait for an answer, and for a board to become free.
      name: name of the board, for messages.

    Returns:
      The board's address and the match key it expects.

    Raises:
      BoardError: if no tracker answers there, it knows no such board, or all are busy.
    """
    from tvm.rpc import base

    host, port = tracker
    connected = asked = False
    try:
        with socket.create_connection(tracker, timeout=timeout) as connection:
            connected = True
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_TRACKER_MAGIC:
                raise ConnectionError("it answers, but not as a tracker")
            # A request for a key that no board has would wait without end: the keys are asked for
            # first.
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            known = _known_keys(base.recvjson(connection)[1])
            if key not in known:
                raise BoardError(
                    f"{name}: the tracker has no board {key!r}; "
                    f"it has {', '.join(sorted(known)) or 'none at all'}"
                )
            base.sendjson(connection, [base.TrackerCode.REQUEST, key, "", 1])
            asked = True
            code, (board_host, board_port, match_key) = base.recvjson(connection)
            if code != base.TrackerCode.SUCCESS:
                raise BoardError(f"{name}: the tracker refuses a board {key!r}")
    except TimeoutError:
        waiting = f"no board {key!r} became free" if asked else f"{host}:{port} did not answer"
        raise BoardError(f"{name}: {waiting} within {timeout:g} s") from None
    except OSError as error:
        if connected:
            raise BoardError(
                f"{name}: {host}:{port} is no TVM RPC tracker ({error}); "
                f"a board that needs none is rpc://{host}:{port}"
            ) from error
        raise BoardError(
            f"{name}: nothing answers at {host}:{port} ({error}); "
            "is it running there (python -m tvm.exec.rpc_tracker)?"
        ) from error
    return (board_host, board_port), match_key


def _known_keys(summary: dict[str, Any]) -> set[str]:
    return {str(server["key"]).removeprefix("server:") for server in summary["server_info"]}
