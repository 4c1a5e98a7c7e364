"""Object files that LLVM makes, in memory first.

Where LLVM cannot write a file (the disk is full), it ends the process. So it is given links to
files in memory, and what it wrote there is written to the disk by Python, which raises an error.

Sharp edge: only Linux has files in memory. Elsewhere LLVM writes to the disk itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxeff.store import write_atomically


@contextlib.contextmanager
def in_memory_files(paths: Sequence[Path]) -> Iterator[Callable[[], None]]:
    """Redirects what LLVM writes to paths into memory.

    Args:
      paths: files that it may write, in a folder that is there.

    Yields:
      A function that writes its files to the disk; raises OSError naming one that fails.
    """
    if not hasattr(os, "memfd_create"):
        yield lambda: None
        return
    with contextlib.ExitStack() as stack:
        files = {}
        for path in paths:
            files[path] = stack.enter_context(os.fdopen(os.memfd_create(path.name), "rb"))
            # LLVM opens files by name; this name leads to the memory.
            path.symlink_to(f"/proc/self/fd/{files[path].fileno()}")

        def to_disk() -> None:
            for path, file in files.items():
                path.unlink()
                # An empty file is one that LLVM did not write.
                if content := file.read():
                    write_atomically(path, content)

        yield to_disk
