"""Files of one JSON value per line, to which lines are only ever added.

A process killed while it adds a line leaves the beginning of one. That beginning is set aside, in
a file of the same name with ``.cut`` at its end, so that all before it can be read and added to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxeff_export.tuning.errors import TuningError


def read_lines(path: Path) -> list[Any]:
    """The values of a file's complete lines; none where there is no file.

    Raises:
      TuningError: naming a line other than the last that is no JSON.
    """
    whole, _ = _split(path)
    values = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise TuningError(
                f"line {number} of {path} is damaged: {error}; delete that line to use the rest"
            ) from error
    return values


def mend(path: Path) -> None:
    """Set a last line that was cut short aside; a file without one stays as it is."""
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


def add_line(path: Path, value: Any) -> None:
    """Add a value in one write."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(value).encode() + b"\n")


def _split(path: Path) -> tuple[bytes, bytes]:
    """The complete lines of a file, and what follows the last of them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b"", b""
    except OSError as error:
        raise TuningError(f"{path} cannot be read: {error.strerror}") from error
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
