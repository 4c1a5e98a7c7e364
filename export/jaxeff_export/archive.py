"""Writing so that a reader sees all or nothing, and reading so that damage is noticed.

Checksums catch transmission errors and accidents, not an attacker, who can compute them as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def digest(data: bytes) -> str:
    """The SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sealed(document: dict[str, Any]) -> bytes:
    """A JSON document with a checksum of itself under ``sha256``."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    body["sha256"] = digest(_canonical(body))
    return json.dumps(body, indent=2).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document of `sealed`.

    Raises:
      ValueError: if it is no JSON object, or its checksum does not match.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    body = {key: value for key, value in document.items() if key != "sha256"}
    if document.get("sha256") != digest(_canonical(body)):
        raise ValueError("its checksum does not match its content")
    return body


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` that replaces it when the block succeeds."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_free(path: Path, mark: str) -> None:
    """Raises `FileExistsError` where `new_folder` would."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FileExistsError(f"{path} exists and is not a folder; choose another path")
    if path.is_dir() and any(path.iterdir()) and not (path / mark).is_file():
        raise FileExistsError(f"{path} holds other files (no {mark}); choose another path")


@contextlib.contextmanager
def new_folder(path: Path, mark: str) -> Iterator[Path]:
    """Yields a temporary folder beside `path` that takes its place when the block succeeds.

    Args:
      path: the folder to write; one that is there is replaced only if it holds a file `mark`.
      mark: the file that tells a folder of our own from somebody else's.

    Raises:
      FileExistsError: if something else is at `path`.
    """
    path = path.absolute()
    require_free(path, mark)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            path.rename(retired / "old")
            try:
                temporary.rename(path)
            except BaseException:
                (retired / "old").rename(path)
                raise
            finally:
                shutil.rmtree(retired, ignore_errors=True)
        else:
            temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
