"""Boards reached over the network: TVM's RPC server runs on the board.

On the board, ``python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090`` is enough for
``rpc://board:9090``. Several boards register at a tracker (``python -m tvm.exec.rpc_tracker
--host 0.0.0.0 --port 9190``; on each board ``python -m tvm.exec.rpc_server --tracker=tracker:9190
--key=pi4``), and ``rpc://tracker:9190/pi4`` is whichever of them is free.

Sharp edges: TVM's RPC server lets whoever reaches its port run anything; keep it inside a trusted
network. The session's time limit covers the whole session, not one call. A TVM server whose
session was killed (out of memory, say) accepts nobody after it and has to be started again; a
tracker's other boards take over meanwhile.

TVM's client waits forever: for a silent peer while connecting, and for a board that hangs or was
unplugged in the middle of a call. Here every wait has a limit. Before connecting, a probe with a
time limit finds out whether the server is free (it logs a mismatched key). An open session's socket
is watched: keep-alive probes notice a board that is gone, a timer one that is stuck.

TVM hands out no socket, so it is found among this process's open files, which works on Linux;
elsewhere sessions are not watched from this side. A tracker is asked with TVM's messages, but over
a socket that times out: TVM's own client waits for a board without end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from jaxeff_export.boards._board import MODALIAS, Board, BoardError, BoardLost, lacking

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

    `session_timeout` is 0 for never; `key` is the server's device key, or the match key that a
    tracker handed out; `name` is for messages.
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
    sockets = set()
    for entry in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            if (target := os.readlink(entry)).startswith("socket:"):
                # With the socket's number: a descriptor that was closed and used again is another
                # one.
                sockets.add(f"{entry.name} {target}")
    return sockets


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
    full_seconds = int(seconds)
    # A `struct timeval` in native longs, as the kernel takes it.
    duration = struct.pack("ll", full_seconds, int(1e6 * (seconds - full_seconds)))
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


def request_board(tracker: Address, key: str, *, timeout: float, name: str) -> tuple[Address, str]:
    """Asks a tracker for a free board.

    Returns the board's address and the match key it expects. `timeout` bounds the wait for an
    answer and that for a free board.
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


_FORMS = "rpc://host:port for a board, rpc://host:port/key for a tracker's boards of that key"
# In TVM's messages: a broken socket, a closed one, and the server's farewell when the time is up.
_SIGNS_OF_LOSS = ("SockChannel", "code == RPCCode::kReturn", "RPCSessionTimeoutError")
_OPTIONS = ("connect_timeout", "session_timeout")


class RpcBoard(Board):
    """A board that answers at ``host:port``.

    Args:
      host: name or address.
      port: TCP port of TVM's RPC server.
      connect_timeout: seconds until an unanswered connection is given up.
      session_timeout: seconds after which the session is ended; 0 for never.
      key: the server's device key, if it was started with one.
      attempts: number of tries of a call in all when the connection is lost.
      pause: seconds between two attempts.
    """

    takes_copies = True

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout: float = 20.0,
        session_timeout: float = 3600.0,
        key: str = "",
        attempts: int = 3,
        pause: float = 2.0,
    ) -> None:
        super().__init__()
        self.name = f"rpc://{host}:{port}"
        self.attempts = attempts
        self._address = (host, port)
        self._connect_timeout = connect_timeout
        self._session_timeout = session_timeout
        self._key = key
        self._pause = pause
        self._session: WatchedSession | None = None
        self._ends = float("inf")
        self._uploaded: list[str] = []

    @classmethod
    def from_url(cls, url: str) -> RpcBoard:
        """Makes the board of an address.

        Args:
          url: ``rpc://host:port`` for a board, ``rpc://host:port/key`` for any free one of a
            tracker; ``?session_timeout=60&connect_timeout=5`` (seconds) may follow.

        Raises:
          BoardError: if the address has another form.
        """
        parts = urlsplit(url)
        try:
            # Raises ValueError for a port that is no number, or out of range.
            port = parts.port
            fields = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            limits: dict[str, Any] = {name: float(value) for name, value in fields.items()}
        except ValueError:
            port = None
        key = parts.path.strip("/")
        if parts.scheme != "rpc" or not parts.hostname or port is None or "/" in key:
            raise BoardError(f"{url!r} is no board address; write {_FORMS}")
        for name, seconds in limits.items():
            if name not in _OPTIONS or not 0 <= seconds < float("inf"):
                raise BoardError(
                    f"{url!r}: {name}={seconds:g} is no option; "
                    f"there are {' and '.join(_OPTIONS)}, in seconds"
                )
        if key:
            return TrackedBoard(parts.hostname, port, key, **limits)
        return cls(parts.hostname, port, **limits)

    def __enter__(self) -> Self:
        self._session = self._connect()
        self._ends = time.monotonic() + (self._session_timeout or float("inf"))
        return self

    def __exit__(self, *failure: Any) -> None:
        """Removes what was uploaded and drops the session, even if the board is gone by now."""
        session, self._session = self._session, None
        uploaded, self._uploaded = self._uploaded, []
        if session is not None:
            for file_name in uploaded:
                # The board may be gone; an error here would hide the one that ended the block.
                with contextlib.suppress(Exception):
                    session.remote.remove(file_name)
            session.close()

    @property
    def device(self) -> Any:
        """The board's CPU."""
        return self._live_session().cpu()

    def load(self, library: Path) -> Any:
        """Uploads the library and loads it on the board."""
        session = self._live_session()
        # Numbered: a file that is loaded must not be written over.
        file_name = f"{len(self._uploaded)}-{library.name}"
        session.upload(bytearray(library.read_bytes()), target=file_name)
        self._uploaded.append(file_name)
        return session.load_module(file_name)

    def missing_features(self, target: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists what the board's kernel says its processor lacks, if it says anything."""
        if self._session is None:
            return ()
        try:
            said = bytes(self._session.remote.download(MODALIAS)).decode("ascii", "replace")
            return lacking(said, target)
        except Exception:
            return ()  # not Linux, or an old one; whatever else is wrong shows when it runs

    def failure(self, error: Exception, started: float) -> BoardError:
        """Distinguishes a lost connection and an expired session from a failed call."""
        reason = self.explain(error)
        cut = self._session is not None and self._session.cut
        if not cut and not any(sign in reason for sign in _SIGNS_OF_LOSS):
            if "Failed to load dynamic shared library" in reason:
                reason = f"its loader refuses the file; is it a board of that kind? ({reason})"
            return BoardError(reason)
        # It ended before this call: on a new session the call may succeed.
        if started >= self._ends:
            return BoardLost(f"the session ended while idle, after {self._session_timeout:g} s")
        # It ended during this call, which would outlast a new session as well.
        if time.monotonic() >= self._ends:
            return BoardError(
                f"no answer before the session's {self._session_timeout:g} s ran out; the board "
                f"hangs, or the call takes longer: {self.name}?session_timeout=SECONDS allows more"
            )
        return BoardLost(
            "the connection was lost; the session's process on the board ended (killed, out of "
            f"memory, or an instruction its processor lacks) or the network did: {reason}"
        )

    def reconnect(self) -> None:
        """Opens a new session after a pause; what was on the board is gone."""
        self.__exit__(None, None, None)
        time.sleep(self._pause)
        try:
            self.__enter__()
        except BoardError as error:
            # Of this kind so that it is tried again: a network may need a moment.
            raise BoardLost(str(error)) from error

    def _connect(self) -> WatchedSession:
        return connect(
            self._address,
            connect_timeout=self._connect_timeout,
            session_timeout=self._session_timeout,
            key=self._key,
            name=self.name,
        )

    def _live_session(self) -> Any:
        if self._session is None:
            raise BoardError(f"{self.name} is not connected; use it in a with statement")
        return self._session.remote


class TrackedBoard(RpcBoard):
    """A free board of a device key from a tracker; replaced by another one if it is lost.

    Args:
      host: the tracker's name or address.
      port: the tracker's TCP port.
      key: the device key that the boards registered under.
      **limits: same as for `RpcBoard`.
    """

    def __init__(self, host: str, port: int, key: str, **limits: Any) -> None:
        super().__init__(host, port, key=key, **limits)
        self.name = f"rpc://{host}:{port}/{key}"

    def _connect(self) -> WatchedSession:
        # Asked anew for every connection: after a loss the tracker names a board that is free.
        address, match_key = request_board(
            self._address, self._key, timeout=self._connect_timeout, name=self.name
        )
        return connect(
            address,
            connect_timeout=self._connect_timeout,
            session_timeout=self._session_timeout,
            key=match_key,
            name=self.name,
        )
