"""Files and folders appear whole or not at all, whenever their writer dies."""

import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from jaxeff.store import (
    CheckpointError,
    Journal,
    add_line,
    atomic_file,
    atomic_folder,
    load_pytree,
    read_lines,
    repair_lines,
    require_absent,
    save_pytree,
    write_atomically,
)
from jaxeff.store._writing import _exchange

WRITERS = Path(__file__).with_name("kill_at_every_line.py")


@pytest.mark.process
def test_a_writer_can_be_killed_at_every_line(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", WRITERS, tmp_path],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    moments = dict(line.split() for line in run.stdout.splitlines())
    assert moments.keys() == {"write_a_file", "write_a_checkpoint", "write_a_folder", "keep_rows"}
    assert all(int(number) > 25 for number in moments.values()), moments


def test_a_failed_write_keeps_the_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, "before")
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_leftover_is_removed_unless_its_writer_lives(tmp_path):
    path = tmp_path / "file[1]"
    (tmp_path / ".file[1].0123.partial").write_text("of a writer that was killed")
    with atomic_file(path) as first:
        assert [p.name for p in tmp_path.iterdir()] == [first.name]
        first.write_text("slow")
        threads = [threading.Thread(target=write_atomically, args=(path, str(i))) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert path.read_text() in "01234567"
    assert path.read_text() == "slow"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_user_decides_who_may_read_it(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")

    def write(path):
        with atomic_folder(path, "mark", lambda mark: mark.decode().split()) as folder:
            (folder / "mark").write_text("file")

    for path, message in ((tmp_path, "holds other files"), (tmp_path / "notes", "is not a folder")):
        with pytest.raises(FileExistsError, match=message):
            write(path)
    assert (tmp_path / "notes").read_text() == "mine"
    (tmp_path / "mark").write_text("[" * 100_000)  # deeper than its reader's stack
    with (
        pytest.raises(FileExistsError, match="mark cannot tell"),
        atomic_folder(tmp_path, "mark", json.loads),
    ):
        pass
    (tmp_path / "mark").write_text("file another")
    with pytest.raises(FileExistsError, match=r"its mark lists: notes; move them elsewhere"):
        write(tmp_path)
    assert (tmp_path / "notes").read_text() == "mine"


def test_folders_are_exchanged_where_the_system_has_no_call_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda *a, **k: object())
    new, old = tmp_path / "new.partial", tmp_path / "old"
    for folder in (new, old):
        folder.mkdir()
        (folder / folder.name).touch()
    _exchange(new, old)
    assert [p.name for p in old.iterdir()] == ["new.partial"]
    assert [p.name for p in new.iterdir()] == ["old"]


LARGE = np.arange(20_000.0)


def write_arrays(path):
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, x=LARGE)


def write_folder(path):
    with atomic_folder(path, "mark", bytes.decode) as folder:
        (folder / "mark").write_text("")
        save_pytree(folder / "inner", {"x": LARGE})


def add_rows(path):
    Journal(path).add("task", LARGE.tolist())


WRITERS_OF_MUCH = [
    lambda path: write_atomically(path, LARGE.tobytes()),
    lambda path: save_pytree(path, {"x": LARGE}),
    write_arrays,
    add_rows,
    write_folder,
]


@pytest.fixture
def full_disk():
    """As a full disk does, the system refuses to write beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", WRITERS_OF_MUCH)
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, full_disk, write):
    path = tmp_path / "name"
    if write is add_rows:
        Journal(path).add("before", [1])
    elif write is write_folder:
        path.mkdir()
        (path / "mark").write_text("")
    else:
        save_pytree(path, {"before": 1.0})
    inner = path / "inner" if write is write_folder else path
    with pytest.raises(OSError, match=re.escape(str(inner))) as raised:
        write(path)
    assert raised.value.filename == str(inner)
    assert ".partial" not in str(raised.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["name"]
    if write is add_rows:
        assert list(Journal(path)) == ["before"]
    elif write is write_folder:
        assert [entry.name for entry in path.iterdir()] == ["mark"]
    else:
        assert load_pytree(path)["before"] == 1


def test_errors_of_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError, match="of-another"), atomic_file(tmp_path / "file"):
        (tmp_path / "of-another").read_bytes()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_mark_that_is_no_file_is_not_read(tmp_path, kind):
    mark = tmp_path / "mark"
    {"pipe": os.mkfifo, "link": lambda p: p.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](
        mark
    )
    with pytest.raises(FileExistsError, match=f"it is a {kind}, not a regular file"):
        require_absent(tmp_path, "mark", lambda content: [])


def special(kind, path):
    """Makes what no file may take the place of."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # as /dev/full
        except PermissionError:
            pytest.skip("only root makes devices")
    elif kind == "link to a device":
        path.symlink_to("/dev/null")
    elif kind == "link to what a process has open":
        path.symlink_to("/proc/self/fd/1")


PLACES = [
    "pipe",
    "folder",
    "socket",
    "device",
    "link to a device",
    "link to what a process has open",
]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("write", [*WRITERS_OF_MUCH, lambda path: add_line(path, [1])])
def test_a_file_takes_the_place_of_files_alone(tmp_path, kind, write):
    if write is write_folder and kind == "folder":
        pytest.skip("which is a folder")
    path = tmp_path / "name"
    special(kind, path)
    before = path.lstat()
    with pytest.raises(
        (OSError, CheckpointError), match=r"it is a .*, not a regular file|is not a folder"
    ):
        write(path)
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_rdev) == (
        before.st_ino, before.st_mode, before.st_rdev,
    )  # fmt: skip
    assert [entry.name for entry in tmp_path.iterdir()] == ["name"]


def test_a_device_that_comes_while_a_file_is_written_stays(tmp_path):
    with pytest.raises(OSError, match="it is a pipe"), atomic_file(tmp_path / "name") as temporary:  # noqa: PT012
        temporary.write_text("content")
        os.mkfifo(tmp_path / "name")
    assert stat.S_ISFIFO((tmp_path / "name").stat().st_mode)


def test_links_to_files_are_replaced(tmp_path):
    (tmp_path / "file").write_text("theirs")
    for target in ("file", "nothing"):
        path = tmp_path / f"link to {target}"
        path.symlink_to(tmp_path / target)
        write_atomically(path, "ours")
        assert not path.is_symlink()
        assert path.read_text() == "ours"
    assert (tmp_path / "file").read_text() == "theirs"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_rows_are_read_of_files_alone(tmp_path, kind):
    special(kind, tmp_path / "name")
    for read in (Journal, read_lines, repair_lines):
        with pytest.raises(CheckpointError, match=rf"name cannot be read: it is a {kind}, not a"):
            read(tmp_path / "name")
