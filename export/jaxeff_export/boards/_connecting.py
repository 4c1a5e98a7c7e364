"""TVM RPC sessions with time limits, both for opening and for the whole session.

TVM's client waits forever: for a silent peer while connecting, and for a board that hangs or was
unplugged in the middle of a call. Here every wait has a limit. Before connecting, a probe with a
time limit finds out whether the server is free (it logs a mismatched key). An open session's socket
is watched: keep-alive probes notice a board that is gone, a timer one that is stuck.

Sharp edge: TVM hands out no socket, so it is found among this process's open files, which works on
Linux; elsewhere sessions are not watched from this side.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxeff_export.boards._board import BoardError

Address = tuple[str, int]

_GRACE = 3.0  # seconds that the server has to end an expired session before this side does
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_UNACKNOWLEDGED_MS = 30_000


class WatchedSession:
    """An open session and the watch over it.

    Attributes:
      remote: TVM's ``RPCSession``.
      cut: whether the time limit was enforced from this side, because the board did not.
    """

    def __init__(self, remote: Any, connection: socket.socket | None, limit: float) -> None:
        self.remote = remote
        self.cut = False
        self._connection = connection
        self._timer: threading.Timer | None = None
        if connection is not None:
            _keep_alive(connection)
            if limit > 0:
                _bound_waiting(connection, limit + _GRACE)
                self._timer = threading.Timer(limit + _GRACE, self._end)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Releases the session; it ends once nothing on the board is referred to any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            # A duplicate of TVM's socket: closing it ends nothing.
            self._connection.close()
        self.remote = None

    def _end(self) -> None:
        assert self._connection is not None
        self.cut = True
        with contextlib.suppress(OSError):
            # Acts on the connection, whichever handle it has: TVM's blocked read returns at once.
            self._connection.shutdown(socket.SHUT_RDWR)


def connect(
    address: Address, *, connect_timeout: float, session_timeout: float, key: str, name: str
) -> WatchedSession:
    """Opens a TVM RPC session.

    Args:
      address: host and port of TVM's RPC server.
      connect_timeout: seconds until an unanswered connection is given up.
      session_timeout: seconds after which the session is ended; 0 for never.
      key: the server's device key, or the match key that a tracker handed out.
      name: name of the board, for messages.

    Raises:
      BoardError: if nobody listens there, nobody answers in time, or the answer is not TVM's.
    """
    from tvm import rpc

    host, port = address
    # TVM's own connecting has no time limit: only a server that is there and free is asked.
    _knock(address, connect_timeout, name)
    # TVM hands out no socket: it is the one that is new afterwards.
    before = _open_sockets()
    with _ended_after(connect_timeout, address, before) as stuck:
        try:
            remote = rpc.connect(host, port, key, session_timeout=session_timeout)
        except Exception as error:
            if stuck:
                raise BoardError(_silent(name, address, connect_timeout)) from error
            reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
            raise BoardError(f"{name}: {host}:{port} refuses the session: {reason}") from error
    return WatchedSession(remote, _socket_to(address, _open_sockets() - before), session_timeout)


@contextlib.contextmanager
def _ended_after(
    seconds: float, address: Address, before: set[str]
) -> Iterator[list[socket.socket]]:
    """Ends a connection that is still being opened when the time is up.

    The server was free when it was probed, but another client may have connected since.

    Yields:
      A list that then holds the connection.
    """
    stuck: list[socket.socket] = []

    def end() -> None:
        if connection := _socket_to(address, _open_sockets() - before):
            stuck.append(connection)
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield stuck
    finally:
        timer.cancel()
        for connection in stuck:
            connection.close()


def _knock(address: Address, timeout: float, name: str) -> None:
    """Makes sure, within a time limit, that a TVM RPC server is there and free.

    It knocks with a device key that no server has and expects to be turned away: a client that
    goes through the handshake and then hangs up would end TVM's server.
    """
    from tvm.rpc import base

    host, port = address
    connected = False
    try:
        with socket.create_connection(address, timeout=timeout) as connection:
            connected = True
            # A key that no server has: this connection is to be turned away, never served.
            greeting = f"client:{secrets.token_hex(8)}".encode()
            connection.sendall(struct.pack("<ii", base.RPC_MAGIC, len(greeting)) + greeting)
            if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_CODE_MISMATCH:
                raise ConnectionError("it answers, but not as a server")
    except TimeoutError:
        raise BoardError(_silent(name, address, timeout)) from None
    except OSError as error:
        if connected:
            raise BoardError(
                f"{name}: {host}:{port} is no TVM RPC server ({error}); "
                f"a tracker's boards are rpc://{host}:{port}/key"
            ) from error
        raise BoardError(
            f"{name}: nothing answers at {host}:{port} ({error}); "
            "is TVM's RPC server running there (python -m tvm.exec.rpc_server)?"
        ) from error


def _silent(name: str, address: Address, timeout: float) -> str:
    return (
        f"{name}: {address[0]}:{address[1]} did not answer within {timeout:g} s; it may be "
        "switched off, serving somebody else, stuck after a crash, or be no TVM RPC server"
    )


def _open_sockets() -> set[str]:
    """Lists the names under ``/proc/self/fd`` that are sockets, with each socket's number."""
    found = set()
    for entry in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            if (target := os.readlink(entry)).startswith("socket:"):
                # With the socket's number: a descriptor that was closed and used again is another
                # one.
                found.add(f"{entry.name} {target}")
    return found


def _socket_to(address: Address, candidates: set[str]) -> socket.socket | None:
    """Duplicates the handle of the candidate that is connected to `address`."""
    host, port = address
    with contextlib.suppress(OSError):
        peers = {info[4][:2] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        for candidate in candidates:
            with contextlib.suppress(OSError):
                # A duplicate, so that closing it here leaves TVM's open.
                connection = socket.socket(fileno=os.dup(int(candidate.split()[0])))
                if connection.getpeername()[:2] in peers:
                    return connection
                connection.close()
    return None


def _bound_waiting(connection: socket.socket, seconds: float) -> None:
    """Limits how long any single wait for the board lasts.

    The timer alone is not enough: TVM asks the board to free objects while it holds Python's global
    lock, and no timer runs then.
    """
    whole = int(seconds)
    # A `struct timeval` in native longs, as the kernel takes it.
    duration = struct.pack("ll", whole, int(1e6 * (seconds - whole)))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, duration)


def _keep_alive(connection: socket.socket) -> None:
    """Makes the operating system notice, within half a minute, that the other end is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Probes are sent while nothing else is; data that nobody acknowledges has its own limit.
    options = {**_KEEP_ALIVE, "TCP_USER_TIMEOUT": _UNACKNOWLEDGED_MS}
    for option, value in options.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
