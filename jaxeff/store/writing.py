"""Files and folders that appear whole or not at all.

What is written goes to a temporary name beside the target, is forced to disk, and takes the
target's place in one step. A process killed at any moment leaves the old content or the new; what
it had written so far stays under a hidden name that ends in ``.partial``, which the next write to
the same target removes. Several processes may write one target at once: the last one wins.

Sharp edges:
    The target's folder must be on one file system with itself, that is, no mount point.
    A link at the target is replaced by what is written, not followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: leftovers of killed writers stay
    fcntl = None  # type: ignore[assignment]

Listed = Callable[[bytes], Iterable[str]]

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that takes the place of ``path`` when the block succeeds.

    Args:
      path: The file to write; its folder is made when missing.

    Yields:
      The path of an empty file in the same folder, to be written by name or opened.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(path, folder=False) as temporary:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file whole or not at all; text is written as UTF-8.

    Args:
      path: The file; its folder is made when missing.
      content: All of it.
    """
    data = content.encode() if isinstance(content, str) else content
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def require_free(path: Path, mark: str, listed: Listed) -> frozenset[str]:
    """Refuse a place where something would be lost.

    Args:
      path: Where a folder is to be written.
      mark: The file of such a folder that lists the others.
      listed: From the content of ``mark`` to the names of the files that belong to it; raises
        ValueError if it can't tell.

    Returns:
      The names of the files there that may be replaced: all that there are.

    Raises:
      FileExistsError: Something else is there, which is named.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FileExistsError(f"{path} exists and is not a folder; choose another path")
    entries = {entry.name: entry for entry in path.iterdir()} if path.is_dir() else {}
    if not entries:
        return frozenset()
    if mark not in entries:
        raise FileExistsError(f"{path} holds other files (no {mark}); choose another path")
    try:
        ours = {mark, *listed(entries[mark].read_bytes())}
    except (ValueError, OSError) as error:
        raise FileExistsError(
            f"{path} may hold files of yours, its {mark} cannot tell: {error}; choose another "
            "path, or remove that folder yourself"
        ) from error
    plain = {name for name, entry in entries.items() if entry.is_file() and not entry.is_symlink()}
    if foreign := sorted(entries.keys() - (ours & plain)):
        some = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise FileExistsError(
            f"{path} holds other files than those that its {mark} lists: {some}; move them "
            "elsewhere, or choose another path"
        )
    return frozenset(entries)


@contextlib.contextmanager
def new_folder(path: Path, mark: str, listed: Listed) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of ``path`` when the block succeeds.

    Args:
      path: The folder to write. One that is there is replaced only if all that it holds is the file
        ``mark`` and what that lists.
      mark: The file that lists the others.
      listed: As for `require_free`.

    Yields:
      An empty folder beside it.

    Raises:
      FileExistsError: Something else is at ``path``, before or after the block.
    """
    path = path.absolute()
    require_free(path, mark, listed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(path, folder=True) as temporary:
        yield temporary
        for entry in temporary.rglob("*"):
            _sync(entry)
        _sync(temporary)
        replaced = require_free(path, mark, listed)  # what came meanwhile counts as well
        if replaced:
            temporary.chmod(path.stat().st_mode & 0o777)
            _exchange(temporary, path)
            _retire(temporary, replaced, path)
        else:
            temporary.rename(path)
        _sync(path.parent)


def _retire(folder: Path, names: frozenset[str], successor: Path) -> None:
    """Remove a replaced folder's files; what came at the last moment moves to its successor."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for entry in folder.iterdir():
        if not (successor / entry.name).exists():
            entry.rename(successor / entry.name)


@contextlib.contextmanager
def _claimed(path: Path, *, folder: bool) -> Iterator[Path]:
    """A temporary name of our own beside a path; what is left under it is removed afterwards."""
    for leftover in path.parent.glob(f".{_escaped(path.name)}.*.partial"):
        _remove_abandoned(leftover)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        if folder:
            temporary.mkdir(mode=0o755)
            handle = os.open(temporary, os.O_RDONLY)
        else:
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)  # held until the process ends, however it ends
        if temporary.exists():  # nobody took it for abandoned before it was locked
            break
        os.close(handle)
    try:
        yield temporary
    finally:
        _remove(temporary)
        os.close(handle)


def _remove_abandoned(leftover: Path) -> None:
    """Remove what a killed writer left, unless its writer lives."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):  # locked, or gone already
        handle = os.open(leftover, os.O_RDONLY if leftover.is_dir() else os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(leftover)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exchange(new: Path, old: Path) -> None:
    """Give a folder the name of another and the other way round, in one step where Linux can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        code = errno.ENOSYS
    else:
        names = os.fsencode(new), os.fsencode(old)
        failed = rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
        code = ctypes.get_errno() if failed else 0
    if code in (errno.ENOSYS, errno.EINVAL):  # no such call here, or not on this file system
        aside = new.with_name(new.name.replace(".partial", ".replaced"))
        old.rename(aside)
        try:
            new.rename(old)
        except BaseException:
            aside.rename(old)
            raise
        aside.rename(new)
    elif code:
        raise OSError(code, os.strerror(code), str(old))


def _sync(path: Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    folder = path.is_dir()
    if path.is_symlink() or (folder and os.name != "posix"):
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        with contextlib.suppress(OSError) if folder else contextlib.nullcontext():
            os.fsync(handle)  # not every file system can for folders
    finally:
        os.close(handle)


def _escaped(name: str) -> str:
    """A name as a glob pattern that matches it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
