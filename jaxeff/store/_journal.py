"""`Journal`: results of finished tasks, in a file of lines that survives the process.

```python
from jaxeff.store import Journal

kept = Journal("rows.jsonl", {"seed": 0, "size": "fast"})
tasks = [2, 3, 5]
for task in tasks:
    if task not in kept:
        kept.add(task, [{"n": task, "square": task**2}])
rows = [row for task in tasks for row in kept[task]]
```

```python
from jaxeff.store import add_line, read_lines, repair_lines

repair_lines("lines.jsonl")                              # nothing to set aside: there is no file
add_line("lines.jsonl", {"seed": 0, "accuracy": 0.9})
add_line("lines.jsonl", {"seed": 1, "accuracy": 0.8})
assert [row["seed"] for row in read_lines("lines.jsonl")] == [0, 1]
```
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from jaxeff.core import validate
from jaxeff.store import _writing as writing
from jaxeff.store._identity import require_same_run


@validate()
def read_lines(path: str | os.PathLike[str]) -> list[Any]:
    """Reads the values of a file's complete lines; none where there is no file.

    Lines are only ever added, also by the functions below, for values of any form; several
    processes may begin, read and add to one file at once. A process killed while it adds a line
    leaves the beginning of one. Readers pass over it; what is added next sets it aside first
    (`repair_lines` does that alone), in a file of the same name with ``.cut`` at its end, so that
    all before it stays readable. Values are objects or lists, of which no proper beginning is JSON,
    so a last line that only lacks its line feed counts as whole.

    Any other damage is refused, and the file stays as it is. White space around a value (and so the
    line ends of Windows) and a byte order mark, which editors may add, are no damage.

    Args:
      path: The file; empty lines in it are passed over.

    Raises:
      CheckpointError: A line is no JSON (it is named), unless it is the last and was cut short; or
        the file cannot be read.
    """
    return [value for _, value in numbered_lines(path)]


def numbered_lines(path: str | os.PathLike[str]) -> list[tuple[int, Any]]:
    """Reads the same values with the numbers of their lines, from 1."""
    return _numbered(Path(path), file_content(Path(path)))


def _numbered(path: Path, content: bytes) -> list[tuple[int, Any]]:
    complete, rest = _split_lines(content)
    values = []
    # Split at the line feed alone: the carriage return of Windows is white space to JSON.
    for number, line in enumerate((complete + (b"" if _is_cut(rest) else rest)).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values.append((number, json.loads(line)))
        # A file from strangers may nest deeper than the parser's stack.
        except (ValueError, RecursionError) as error:
            raise writing.CheckpointError(
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
    if not _split_lines(file_content(path))[1]:
        return
    # Looked at again: what was cut short may be a line that another process was just adding.
    with _alone(path) as file:
        _repair(path, file)


@validate()
def add_line(path: str | os.PathLike[str], value: Any) -> None:
    """Adds a value to a file, and forces it to disk.

    Several processes may add to one file. What one that was killed has left of a line is set aside.

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
    with _alone(Path(path)) as file:
        _repair(Path(path), file)
        _append(file, data)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[FileIO]:
    """Opens a file to read and to add to, made when missing, that nobody else adds to meanwhile."""
    writing.require_replaceable(path)
    while True:
        # Unbuffered, one write: a killed process leaves a beginning of the line, never parts of
        # two.
        with writing.named_errors(path), path.open("a+b", buffering=0) as file:
            writing.lock(file.fileno())
            # A fresh journal may have taken the file's place while its lock was waited for.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    yield file
                    return


def _append(file: FileIO, data: bytes) -> None:
    """Adds bytes to a file that is locked, all of them or none."""
    end = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, "the line does not fit on the disk", str(file.name))
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def _repair(path: Path, file: FileIO) -> None:
    """Sets a last line that was cut short aside, of a file that is locked."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    complete, rest = _split_lines(file.readall())
    if not _is_cut(rest):  # only the line's end is missing
        _append(file, b"\n")
        return
    aside = path.with_name(path.name + ".cut")
    writing.require_replaceable(aside)
    with writing.named_errors(aside), aside.open("ab") as other:
        other.write(rest + b"\n")
        other.flush()
        os.fsync(other.fileno())  # on disk there before it is gone here
    file.truncate(len(complete))


def file_content(path: Path) -> bytes:
    """Reads the bytes of a file; none where there is no file."""
    try:
        with writing.open_regular(path) as (file, _):
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise writing.CheckpointError(
            f"{path} cannot be read: {error.strerror}; choose another file"
        ) from error


def _split_lines(data: bytes) -> tuple[bytes, bytes]:
    """Splits a file's content into its complete lines and what follows the last of them."""
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


class Journal:
    """Values by task, on disk as soon as they are known.

    A task is identified by its JSON, in which the order of keys doesn't matter. If a task was added
    twice, the later value counts. Values come back as JSON has them (tuples as lists), whether this
    process added them or an earlier one.

    The file has one JSON object per line: first ``{"run": ...}``, what makes it the same run, then
    ``{"task": ..., "rows": ...}`` per finished task. A process killed at any moment loses at most
    the task it was in.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Reads what an earlier run left; a last line that was cut short is set aside.

        A file that is refused stays as it is, byte for byte.

        Args:
            path: The file; it and its folder are made when missing.
            run: What makes it the same run, as JSON: settings that every value depends on and the
                tasks don't name.
            fresh: Whether to forget what is there.

        Raises:
            CheckpointError: The file holds another run (the first difference is named), something
                else, or a damaged line (its number is named); or it is a folder.
            OSError: It cannot be written there; found before anything is computed.
        """
        self.path = Path(path)
        self._values: dict[str, Any] = {}
        head = json.dumps({"run": dict(run or {})}) + "\n"
        if fresh:
            writing.write_atomically(self.path, head)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file_content(self.path)  # a folder or a device is refused before it is opened to be written
        # Locked: of several processes that begin, one writes the head and the others read it.
        with _alone(self.path) as file:
            file.seek(0)
            content = file.readall()
            # A head that is cut short has no values behind it; a new file has none of it.
            if len(content) < len(head) and head.encode().startswith(content):
                _append(file, head.encode()[len(content) :])
                writing.sync(self.path.parent)
                return
            # Before anything is changed: a file that isn't understood is somebody's.
            self._read(_numbered(self.path, content), json.loads(head)["run"])
            _repair(self.path, file)

    def _read(self, records: list[tuple[int, Any]], run: dict[str, Any]) -> None:
        (number, head), *rest = records or [(1, None)]
        if not (isinstance(head, dict) and [*head] == ["run"] and isinstance(head["run"], dict)):
            raise writing.CheckpointError(
                f"line {number} of {self.path} does not say which run its values are of; choose "
                "another file, or start afresh to overwrite it."
            )
        require_same_run(
            f"the values in {self.path} are", head["run"], run, overwrite="start afresh"
        )
        for number, record in rest:
            if not (isinstance(record, dict) and record.keys() == {"task", "rows"}):
                raise writing.CheckpointError(
                    f"line {number} of {self.path} is not that of a task; mend that line, delete "
                    "it, choose another file, or start afresh to overwrite it."
                )
            self._values[_named(record["task"])] = record["rows"]

    def __contains__(self, task: Any) -> bool:
        return _named(task) in self._values

    def __getitem__(self, task: Any) -> Any:
        return self._values[_named(task)]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        """Returns the tasks, as JSON has them, in the order in which they were first added."""
        return (json.loads(name) for name in self._values)

    def add(self, task: Any, rows: Any) -> None:
        """Keeps what a finished task found.

        Raises:
            TypeError: The task or the rows are not JSON; nothing was written.
        """
        name = _named(task)
        # On disk before it is known here: what this process counts as finished survives it.
        add_line(self.path, {"task": task, "rows": rows})
        # Through JSON once, so that a value reads the same now and after a restart.
        self._values[name] = json.loads(json.dumps(rows))


def _named(task: Any) -> str:
    return json.dumps(task, sort_keys=True)
