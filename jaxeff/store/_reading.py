"""Safe opening of files that others made: regular files alone.

A folder from elsewhere may hold links, pipes and devices as well. A pipe without a writer blocks
its reader, ``/dev/zero`` has no end, and a link leads out of the folder.

```python
from pathlib import Path

from jaxeff.store import open_regular

Path("theirs.json").write_text("{}")
with open_regular("theirs.json", links=False) as (file, size):
    content = file.read(min(size, 1_000_000))            # never more than a file may hold
try:
    with open_regular("/dev/zero") as (file, size):
        file.read()
except OSError as error:
    assert "it is a device, not a regular file" in str(error)
```
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


@contextlib.contextmanager
def open_regular(
    path: str | os.PathLike[str], *, links: bool = True
) -> Iterator[tuple[BinaryIO, int]]:
    """Opens a regular file for reading, and nothing else.

    Args:
      path: The file.
      links: Whether a link to one is followed.

    Yields:
      The open file and its size in bytes.

    Raises:
      OSError: It is something else, which is named, or cannot be opened.
    """
    # Before opening, which may act already: it blocks on a pipe, and some devices react to it.
    _require_regular(os.stat(path, follow_symlinks=links), path)
    # Not blocking, in case a pipe takes the file's place between the look and the opening.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags | (0 if links else getattr(os, "O_NOFOLLOW", 0)))
    with os.fdopen(handle, "rb") as file:
        # What was looked at may have been replaced before it was opened.
        found = os.fstat(handle)
        _require_regular(found, path)
        yield file, found.st_size


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuses a place whose content isn't that of a regular file, before it is written to.

    A file takes the place of what is there: of `/dev/full` as well, where one may.

    Raises:
      OSError: A device, a pipe, a folder or a socket is there, or a link to one or to what a
        process has open (`/dev/stdout`); it is named.
    """
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            target = os.path.join(os.path.dirname(os.path.abspath(path)), os.readlink(path))
            if os.path.abspath(target).startswith(("/proc/", "/dev/")):
                raise OSError(
                    errno.EINVAL, f"it is a link to {target}, not a regular file", os.fspath(path)
                )
            found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # nothing is there, or a link to nothing
    _require_regular(found, path)


def _require_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        name = _KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"it is {name}, not a regular file", os.fspath(path))
