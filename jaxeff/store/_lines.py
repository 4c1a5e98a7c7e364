"""Files of one JSON value per line, to which lines are only ever added.

A process killed while it adds a line leaves the beginning of one. Readers pass over it; before the
file is added to, `repair_lines` sets it aside, in a file of the same name with ``.cut`` at its end,
so that all before it stays readable. Values are objects or lists, of which no proper beginning is
JSON, so a last line that only lacks its line feed counts as whole.

Any other damage is refused, and the file stays as it is. White space around a value (and so the
line ends of Windows) and a byte order mark, which editors may add, are no damage.

```python
from jaxeff.store import add_line, read_lines, repair_lines

repair_lines("rows.jsonl")                              # nothing to set aside: there is no file
add_line("rows.jsonl", {"seed": 0, "accuracy": 0.9})
add_line("rows.jsonl", {"seed": 1, "accuracy": 0.8})
assert [row["seed"] for row in read_lines("rows.jsonl")] == [0, 1]
```
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from jaxeff.core import validate
from jaxeff.store._errors import CheckpointError
from jaxeff.store._reading import open_regular, require_replaceable
from jaxeff.store._writing import named_errors


@validate()
def read_lines(path: str | os.PathLike[str]) -> list[Any]:
    """Reads the values of a file's complete lines; none where there is no file.

    Args:
      path: The file; empty lines in it are passed over.

    Raises:
      CheckpointError: A line is no JSON (it is named), unless it is the last and was cut short; or
        the file cannot be read.
    """
    return [value for _, value in numbered_lines(path)]


def numbered_lines(path: str | os.PathLike[str]) -> list[tuple[int, Any]]:
    """Reads the same values with the numbers of their lines, from 1."""
    path = Path(path)
    whole, rest = _split(path)
    values = []
    # Split at the line feed alone: the carriage return of Windows is white space to JSON.
    for number, line in enumerate((whole + (b"" if _is_cut(rest) else rest)).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values.append((number, json.loads(line)))
        # A file from strangers may nest deeper than the parser's stack.
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"line {number} of {path} is damaged: {error}. The file was left as it is; mend "
                "that line, delete it to use the rest, or choose another file"
            ) from error
    return values


@validate()
def repair_lines(path: str | os.PathLike[str]) -> None:
    """Sets a last line that was cut short aside; a file without one stays as it is.

    Read the file first: another program's file must be refused before it is changed.
    """
    path = Path(path)
    whole, rest = _split(path)
    if not rest:
        return
    aside = path.with_name(path.name + ".cut")
    require_replaceable(aside)
    if not _is_cut(rest):  # only the line's end is missing
        with named_errors(path), path.open("ab") as file:
            file.write(b"\n")
        return
    with named_errors(aside), aside.open("ab") as file:
        file.write(rest + b"\n")
        file.flush()
        os.fsync(file.fileno())  # on disk there before it is gone here
    with path.open("r+b") as file:
        file.truncate(len(whole))


@validate()
def add_line(path: str | os.PathLike[str], value: Any) -> None:
    """Adds a value to a file that ends with a whole line, and forces it to disk.

    Args:
      path: The file; made when missing, its folder isn't.
      value: A mapping or a sequence, of what JSON knows.

    Raises:
      TypeError: The value is of another type or not JSON; nothing was written.
      OSError: It cannot be written (the disk is full, it is a device); the file is as before.
    """
    if not isinstance(value, (dict, list, tuple)):
        raise TypeError(f"a line holds an object or a list, not a {type(value).__name__}.")
    data = json.dumps(value).encode() + b"\n"
    require_replaceable(path)
    with named_errors(Path(path)), Path(path).open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            # Unbuffered, one write: a killed process leaves a beginning of the line, never
            # parts of two.
            if file.write(data) < len(data):
                raise OSError(errno.ENOSPC, "the line does not fit on the disk", str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def file_content(path: Path) -> bytes:
    """Reads the bytes of a file; none where there is no file.

    Raises:
      CheckpointError: It is no regular file, or cannot be read.
    """
    try:
        with open_regular(path) as (file, _):
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; choose another file"
        ) from error


def _split(path: Path) -> tuple[bytes, bytes]:
    """Splits a file into its complete lines and what follows the last of them."""
    data = file_content(path)
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _is_cut(line: bytes) -> bool:
    """Tells whether a last line is the beginning of a value.

    A value with something behind it is none: it was written whole, and damaged later.
    """
    text = line.decode(errors="replace").lstrip("\ufeff \t\r")
    if not text:
        return False
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, (dict, list))  # of a number or a word, the rest may be missing
