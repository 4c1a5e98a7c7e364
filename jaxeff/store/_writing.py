"""Files and folders that appear whole or not at all, and are opened only where they are regular.

What is written goes to a temporary name beside the target, is forced to disk, and takes the
target's place in one step. A process killed at any moment leaves the old content or the new; what
it had written so far stays under a hidden name that ends in ``.partial``, which the next write to
the same target removes. Several processes may write one target at once: the last one wins.

An error of the file system, such as a full disk, names the file that was to be written.

```python
from pathlib import Path

from jaxeff.store import atomic_file, write_atomically

write_atomically("notes.txt", "whole, or not at all")
with atomic_file("notes.txt") as path:                  # for what writes by itself
    path.write_text("newer")
assert Path("notes.txt").read_text() == "newer"
```

Sharp edges:
    The target's folder must be on one file system with itself, that is, no mount point.
    A link to a file at the target is replaced by what is written, not followed; devices, pipes,
    folders and links to them are refused.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from jaxeff.core import instance_of, validate

try:
    import fcntl
except ImportError:  # not a POSIX system: leftovers of killed writers stay
    fcntl = None  # type: ignore[assignment]

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

    It is for files that others made: a folder from elsewhere may hold links, pipes and devices as
    well. A pipe without a writer blocks its reader, ``/dev/zero`` has no end, and a link leads out
    of the folder.

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
        status = os.fstat(handle)
        _require_regular(status, path)
        yield file, status.st_size


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuses a place whose content isn't that of a regular file, before it is written to.

    A file takes the place of what is there: of `/dev/full` as well, where one may.
    """
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            target = os.path.join(os.path.dirname(os.path.abspath(path)), os.readlink(path))
            if os.path.abspath(target).startswith(("/proc/", "/dev/")):
                raise OSError(
                    errno.EINVAL, f"it is a link to {target}, not a regular file", os.fspath(path)
                )
            status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # nothing is there, or a link to nothing
    _require_regular(status, path)


def _require_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        name = _KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"it is {name}, not a regular file", os.fspath(path))


Listed = Callable[[bytes], Iterable[str]]

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@validate()
@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path that takes the place of ``path`` when the block succeeds.

    Args:
      path: The file to write; its folder is made when missing.

    Yields:
      The path of an empty file in the same folder, to be written by name or opened.

    Raises:
      OSError: It cannot be written (the disk is full, a device or a folder is there), and is named;
        what was there stays.
    """
    path = Path(path)
    require_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Content first, then the name, each forced to disk: after a power cut there is the old
    # file or the new one, never part of one.
    with _claimed(path, folder=False) as temporary:
        yield temporary
        sync(temporary)
        require_replaceable(path)  # once more: writing may have taken minutes
        temporary.replace(path)
        sync(path.parent)


@validate(content=instance_of(str, bytes))
def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file whole or not at all; text is written as UTF-8.

    Args:
      path: The file; its folder is made when missing.
      content: All of it.

    Raises:
      OSError: Same as for `atomic_file`.
    """
    data = content.encode() if isinstance(content, str) else content
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def named_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Lets errors of the file system name what was to be written.

    Errors that name no file get the name of `path`; those that name `temporary`, which is written
    in its place, or something in it, get the final name.
    """
    try:
        yield
    except OSError as error:
        at = error.filename2 or error.filename
        if at is None and type(error) is not OSError and error.errno is None:
            raise  # of its own kind, in words of its own
        place = path
        if at is not None:
            if temporary is None or not Path(os.fsdecode(at)).is_relative_to(temporary):
                raise
            place = path / Path(os.fsdecode(at)).relative_to(temporary)
        # NumPy has words alone for a file that ends too soon.
        code, words = error.errno or errno.EIO, error.strerror or str(error)
        raise OSError(code, words, str(place)) from error


def require_absent(path: Path, mark: str, listed: Listed) -> frozenset[str]:
    """Refuses a place where something would be lost.

    ```python
    import json
    from pathlib import Path

    from jaxeff.store import require_absent

    require_absent(Path("bundle of tomorrow"), "files.json", json.loads)    # before long work
    ```

    Args:
      path: Path at which a folder is to be written.
      mark: The file of such a folder that lists the others.
      listed: From the content of ``mark`` to the names of the files that belong to it, those in
        folders of it with slashes; raises ValueError if it can't tell.

    Returns:
      The names of the files and folders there that may be replaced: all that there are.

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
        with open_regular(entries[mark], links=False) as (file, _):
            ours = {mark, *listed(file.read())}
    # A listing of somebody else's may be of any form, and nest deeper than its reader's stack.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise FileExistsError(
            f"{path} may hold files of yours, its {mark} cannot tell: {error}; choose another "
            "path, or remove that folder yourself"
        ) from error
    # Only folders that a listed file lies in are looked into: any other is somebody else's.
    folders = {str(above) for name in ours for above in PurePosixPath(name).parents} - {"."}
    for name in sorted(folders):
        if (path / name).is_dir() and not (path / name).is_symlink():
            entries |= {f"{name}/{entry.name}": entry for entry in (path / name).iterdir()}
    # A link does not count as ours even under a listed name: it may lead out of the folder.
    plain = {
        name
        for name, entry in entries.items()
        if not entry.is_symlink() and (entry.is_dir() if name in folders else entry.is_file())
    }
    if foreign := sorted(entries.keys() - ((ours | folders) & plain)):
        some = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise FileExistsError(
            f"{path} holds other files than those that its {mark} lists: {some}; move them "
            "elsewhere, or choose another path"
        )
    return frozenset(entries)


@contextlib.contextmanager
def atomic_folder(path: Path, mark: str, listed: Listed) -> Iterator[Path]:
    """Yields a temporary folder that takes the place of ``path`` when the block succeeds.

    A folder is replaced if a file in it lists all that it holds, so that nobody's own files are
    lost:

    ```python
    import json
    from pathlib import Path

    from jaxeff.store import atomic_folder, require_absent

    for version in ("first", "second"):
        with atomic_folder(Path("bundle"), "files.json", json.loads) as folder:
            (folder / "notes.txt").write_text(version)
            (folder / "files.json").write_text('["notes.txt"]')
    assert Path("bundle/notes.txt").read_text() == "second"

    assert require_absent(Path("bundle"), "files.json", json.loads) == {"files.json", "notes.txt"}
    Path("bundle/mine.txt").touch()
    try:
        require_absent(Path("bundle"), "files.json", json.loads)
    except FileExistsError as error:
        assert "mine.txt" in str(error)
    ```

    Args:
      path: The folder to write. One that is there is replaced only if all that it holds is the file
        ``mark`` and what that lists.
      mark: The file that lists the others.
      listed: Same as for `require_absent`.

    Yields:
      An empty folder beside it.

    Raises:
      FileExistsError: Something else is at ``path``, before or after the block.
      OSError: A file cannot be written (the disk is full), and is named; what was there stays.
    """
    path = path.absolute()
    require_absent(path, mark, listed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(path, folder=True) as temporary:
        yield temporary
        for entry in temporary.rglob("*"):
            sync(entry)
        sync(temporary)
        # Checked a second time right before the exchange: writing may have taken minutes.
        replaced = require_absent(path, mark, listed)  # what came meanwhile counts as well
        if replaced:
            temporary.chmod(path.stat().st_mode & 0o777)
            _exchange(temporary, path)
            _retire(temporary, replaced, path)
        else:
            temporary.rename(path)
        sync(path.parent)


def _retire(folder: Path, names: frozenset[str], successor: Path) -> None:
    """Removes a replaced folder's files; what came at the last moment moves to its successor."""
    # A folder's files come before the folder itself.
    for name in sorted(names, key=lambda name: -name.count("/")):
        # Only names that were checked are removed; a file that came since is somebody else's.
        if (folder / name).is_dir():
            with contextlib.suppress(OSError):  # something came into it
                (folder / name).rmdir()
        else:
            (folder / name).unlink(missing_ok=True)
    for entry in [entry for entry in folder.rglob("*") if not entry.is_dir()]:
        place = successor / entry.relative_to(folder)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            entry.rename(place)


@contextlib.contextmanager
def _claimed(path: Path, *, folder: bool) -> Iterator[Path]:
    """Yields a temporary name of our own beside a path; removes what is left under it."""
    for leftover in path.parent.glob(f".{_escaped(path.name)}.*.partial"):
        _remove_abandoned(leftover)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        with named_errors(path, temporary):
            # Created exclusively: the random name is ours, or this fails.
            if folder:
                temporary.mkdir(mode=0o755)
                handle = os.open(temporary, os.O_RDONLY)
            else:
                handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        lock(handle)  # held until the process ends, however it ends
        if temporary.exists():  # nobody took it for abandoned before it was locked
            break
        os.close(handle)
    try:
        with named_errors(path, temporary):
            yield temporary
    finally:
        _remove(temporary)
        os.close(handle)


def lock(handle: int) -> None:
    """Waits until no other process, or thread, has a file locked, and locks it until it is closed.

    Some network file systems, and systems other than POSIX, have no locks: nothing waits there.
    """
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)


def _remove_abandoned(leftover: Path) -> None:
    """Removes what a killed writer left, unless its writer lives."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):  # locked, or gone already
        handle = os.open(leftover, os.O_RDONLY if leftover.is_dir() else os.O_RDWR)
        try:
            # The kernel frees a lock when its process ends: whoever gets it knows that the
            # writer is gone.
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
    """Gives a folder the name of another and the other way round, in one step where Linux can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        code = errno.ENOSYS
    else:
        names = os.fsencode(new), os.fsencode(old)
        failed = rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
        code = ctypes.get_errno() if failed else 0
    if code in (errno.ENOSYS, errno.EINVAL):  # no such call here, or not on this file system
        # Two renames instead of one exchange: for a moment neither name is there, and a
        # failure in between is undone.
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


def sync(path: Path) -> None:
    """Forces a file, or the names in a folder, to disk."""
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
    """Escapes a name to a glob pattern that matches it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def cache_folder() -> Path:
    """Chooses ``$JAXEFF_CACHE``, else ``jaxeff`` in the user's cache folder; it may not exist.

    It is for what is made once and used again: built data sets, an emulated board.

    ```python
    from jaxeff.store import cache_folder

    kept = cache_folder() / "dirty-mnist"                # such as ~/.cache/jaxeff/dirty-mnist
    print(sorted(path.name for path in kept.glob("*")))  # the data sets that were built, if any
    ```
    """
    if chosen := os.environ.get("JAXEFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxeff"


class CheckpointError(ValueError):
    """A stored file is damaged, or belongs to another run."""


@contextlib.contextmanager
def reading_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns what a malformed file leads to (a missing key, another type) into an error of its own.

    ```python
    import json

    from jaxeff.store import CheckpointError, reading_errors

    try:
        with reading_errors("notes.json"):
            json.loads("{}")["weights"]
    except CheckpointError as error:
        assert "notes.json is damaged" in str(error)
    ```

    Raises:
      CheckpointError: It names the file.
    """
    try:
        yield
    except CheckpointError:
        raise
    # A file may have a right checksum and have been written by anybody.
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        words = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} is damaged, or was not written by jaxeff: {type(error).__name__}: {words}"
        ) from error
