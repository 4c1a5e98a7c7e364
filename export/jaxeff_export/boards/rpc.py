"""Boards reached over the network: TVM's RPC server runs on the board.

On the board, ``python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090`` is enough.

Sharp edges: TVM's RPC server lets whoever reaches its port run anything; keep it inside a trusted
network. The session's time limit covers the whole session, not one call. TVM's client has no
time-out of its own while connecting, so a knock that has one goes first; the server logs it as a
mismatched key.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from jaxeff_export.boards.board import Board, BoardError


class RpcBoard(Board):
    """A board that answers at ``host:port``.

    Args:
      host: name or address.
      port: TCP port of TVM's RPC server.
      connect_timeout: seconds until an unanswered connection is given up.
      session_timeout: seconds after which the board ends the session; 0 for never.
      key: the server's device key, if it was started with one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout: float = 20.0,
        session_timeout: float = 3600.0,
        key: str = "",
    ) -> None:
        self.name = f"rpc://{host}:{port}"
        self._address = (host, port)
        self._connect_timeout = connect_timeout
        self._session_timeout = session_timeout
        self._key = key
        self._session: Any = None
        self._uploaded: list[str] = []

    @classmethod
    def from_url(cls, url: str) -> RpcBoard:
        """The board of an ``rpc://host:port`` address.

        Raises:
          BoardError: if the address has another form.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "rpc" or not parts.hostname or port is None:
            raise BoardError(f"{url!r} is no board address; write rpc://host:port")
        return cls(parts.hostname, port)

    def __enter__(self) -> Self:
        self._session = connect(
            self._address,
            connect_timeout=self._connect_timeout,
            session_timeout=self._session_timeout,
            key=self._key,
            name=self.name,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Removes what was uploaded and drops the session, even if the board is gone by now."""
        session, self._session = self._session, None
        uploaded, self._uploaded = self._uploaded, []
        if session is not None:
            for file_name in uploaded:
                with contextlib.suppress(Exception):
                    session.remove(file_name)

    @property
    def device(self) -> Any:
        """The board's CPU."""
        return self._live_session().cpu()

    def load(self, library: Path) -> Any:
        """Uploads the library and loads it on the board."""
        session = self._live_session()
        file_name = f"{len(self._uploaded)}-{library.name}"
        session.upload(bytearray(library.read_bytes()), target=file_name)
        self._uploaded.append(file_name)
        return session.load_module(file_name)

    def explain(self, error: Exception) -> str:
        """Tells a lost connection from a failed call."""
        reason = super().explain(error)
        if "SockChannel" not in reason:
            return reason
        return (
            "the connection was lost; the session's process on the board ended (killed, out of "
            f"memory, or an instruction its processor lacks) or the network did: {reason}"
        )

    def _live_session(self) -> Any:
        if self._session is None:
            raise BoardError(f"{self.name} is not connected; use it in a with statement")
        return self._session


def connect(
    address: tuple[str, int],
    *,
    connect_timeout: float,
    session_timeout: float,
    key: str,
    name: str,
) -> Any:
    """Opens a TVM RPC session within a time limit.

    Raises:
      BoardError: if nobody listens there, nobody answers in time, or the answer is not TVM's.
    """
    from tvm import rpc

    host, port = address
    _knock(address, connect_timeout, name)
    try:
        return rpc.connect(host, port, key, session_timeout=session_timeout)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise BoardError(f"{name}: {host}:{port} refuses the session: {reason}") from error


def _knock(address: tuple[str, int], timeout: float, name: str) -> None:
    """Makes sure, within a time limit, that a TVM RPC server is there and free.

    It knocks with a device key that no server has and expects to be turned away: a client that
    goes through the handshake and then hangs up would end TVM's server.
    """
    from tvm.rpc import base

    host, port = address
    try:
        with socket.create_connection(address, timeout=timeout) as connection:
            greeting = f"client:{secrets.token_hex(8)}".encode()
            connection.sendall(struct.pack("<ii", base.RPC_MAGIC, len(greeting)) + greeting)
            answer = struct.unpack("<i", base.recvall(connection, 4))[0]
    except TimeoutError:
        raise BoardError(
            f"{name}: {host}:{port} did not answer within {timeout:g} s; "
            "it may be switched off, serving somebody else, or be no TVM RPC server"
        ) from None
    except OSError as error:
        raise BoardError(
            f"{name}: nothing answers at {host}:{port} ({error}); "
            "is TVM's RPC server running there (python -m tvm.exec.rpc_server)?"
        ) from error
    if answer != base.RPC_CODE_MISMATCH:
        raise BoardError(f"{name}: {host}:{port} is no TVM RPC server")
