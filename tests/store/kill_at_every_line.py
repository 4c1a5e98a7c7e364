"""Kills a writer at each line of code that it runs, and looks at what it leaves.

Run as a program, since it forks: ``python kill_at_every_line.py FOLDER``.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

from jaxeff.store import (
    CheckpointError,
    Journal,
    atomic_folder,
    load_pytree,
    save_pytree,
    write_atomically,
)

STORE = str(Path(sys.modules["jaxeff.store"].__file__).parent)


def killed_at(line, work):
    """Run `work` in a child that is killed at its line-th line in the store; False if it ended."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = line

    def at_line(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.startswith(STORE):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return at_line

    sys.settrace(at_line)
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def write_a_file(path):
    write_atomically(path, b"old" * 100)

    def check():
        assert path.read_bytes() in (b"old" * 100, b"new" * 1000)

    return lambda: write_atomically(path, b"new" * 1000), check


def write_a_checkpoint(path):
    save_pytree(path, {"w": np.zeros(100)})

    def check():
        assert np.ptp(load_pytree(path)["w"]) == 0

    return lambda: save_pytree(path, {"w": np.ones(100)}), check


def write_a_folder(path):
    def write(text):
        with atomic_folder(path, "mark", lambda mark: ["file"]) as folder:
            (folder / "mark").write_text(text)
            (folder / "file").write_text(text)

    write("old")

    def check():
        assert (path / "mark").read_text() == (path / "file").read_text()

    return lambda: write("new"), check


def keep_rows(path):
    done = []

    def work():
        kept = Journal(path, {"seed": 0})
        for task in range(3):
            if task not in kept:
                kept.add(task, [{"task": task}])

    def check():
        if path.exists():
            kept = Journal(path, {"seed": 0})
            assert len(kept) >= len(done), "a task was lost"
            done[:] = kept
            assert all(kept[task] == [{"task": task}] for task in kept)
            try:
                Journal(path, {"seed": 1})
            except CheckpointError:
                return
            raise AssertionError("another run was not refused")

    return work, check


def run(scenario, folder):
    """How often the writer was killed before it ran through."""
    target = folder / "target"
    work, check = scenario(target)
    moments = 0
    while killed_at(moments, work):
        check()
        moments += 1
    check()
    work()
    left = [path.name for path in folder.iterdir() if path != target]
    assert not left, f"leftovers were not removed: {left}"
    return moments


if __name__ == "__main__":
    for scenario in (write_a_file, write_a_checkpoint, write_a_folder, keep_rows):
        folder = Path(sys.argv[1]) / scenario.__name__
        folder.mkdir()
        print(scenario.__name__, run(scenario, folder), flush=True)
