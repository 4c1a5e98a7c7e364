"""Files of one JSON value per line, to which lines are only ever added.

A process killed while it adds a line leaves the beginning of one. Readers pass over it; before the
file is added to, `mend_lines` sets it aside, in a file of the same name with ``.cut`` at its end,
so that all before it stays readable. Values are objects or lists, of which no proper beginning is
JSON: a last line that only lacks its end counts as whole.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jaxeff.store.errors import CheckpointError


def read_lines(path: str | os.PathLike[str]) -> list[Any]:
    """Return the values of a file's complete lines; none where there is no file.

    Args:
      path: The file; empty lines in it are passed over.

    Raises:
      CheckpointError: A line other than the last is no JSON (it is named), or the file cannot be
        read.
    """
    path = Path(path)
    whole, rest = _split(path)
    values = []
    for number, line in enumerate((whole + (rest if _is_json(rest) else b"")).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise CheckpointError(
                f"line {number} of {path} is damaged: {error}; delete that line to use the rest"
            ) from error
    return values


def mend_lines(path: str | os.PathLike[str]) -> None:
    """Set a last line that was cut short aside; a file without one stays as it is."""
    path = Path(path)
    whole, rest = _split(path)
    if not rest:
        return
    if _is_json(rest):  # only the line's end is missing
        with path.open("ab") as file:
            file.write(b"\n")
        return
    with path.with_name(path.name + ".cut").open("ab") as file:
        file.write(rest + b"\n")
    with path.open("r+b") as file:
        file.truncate(len(whole))


def add_line(path: str | os.PathLike[str], value: Any) -> None:
    """Add a value to a file that ends with a whole line, and force it to disk.

    Args:
      path: The file; made when missing, its folder isn't.
      value: A mapping or a sequence, of what JSON knows.

    Raises:
      TypeError: The value is of another type or not JSON; nothing was written.
      OSError: It cannot be written (the disk is full); the file is as before.
    """
    if not isinstance(value, (dict, list, tuple)):
        raise TypeError(f"a line holds an object or a list, not a {type(value).__name__}.")
    data = json.dumps(value).encode() + b"\n"
    with Path(path).open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) < len(data):
                raise OSError(f"{path} cannot be added to: the line does not fit on the disk")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _split(path: Path) -> tuple[bytes, bytes]:
    """The complete lines of a file, and what follows the last of them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b"", b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), (dict, list))
    except ValueError:
        return False
