"""Boards reached over the network: TVM's RPC server runs on the board.

On the board, ``python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090`` is enough for
``rpc://board:9090``. Several boards register at a tracker (``python -m tvm.exec.rpc_tracker
--host 0.0.0.0 --port 9190``; on each board ``python -m tvm.exec.rpc_server --tracker=tracker:9190
--key=pi4``), and ``rpc://tracker:9190/pi4`` is whichever of them is free.

Sharp edges: TVM's RPC server lets whoever reaches its port run anything; keep it inside a trusted
network. The session's time limit covers the whole session, not one call. A TVM server whose
session was killed (out of memory, say) accepts nobody after it and has to be started again; a
tracker's other boards take over meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from jaxeff_export.boards._board import Board, BoardError, BoardLost
from jaxeff_export.boards._connecting import WatchedSession, connect
from jaxeff_export.boards._processor import MODALIAS, lacking
from jaxeff_export.boards._tracker import request_board

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
            given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            limits: dict[str, Any] = {name: float(value) for name, value in given.items()}
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
