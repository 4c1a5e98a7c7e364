"""Files of a disk with the types that their extensions say, and types that Magika never saw."""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxeff.contrib import file_tokens

KNOWN = {
    "bmp": "bmp", "bz2": "bzip", "c": "c", "cc": "cpp", "cmake": "cmake", "css": "css",
    "csv": "csv", "exe": "pebin", "f90": "fortran", "gif": "gif", "gz": "gzip", "h5": "h5",
    "ico": "ico", "ini": "ini", "ipynb": "ipynb", "jpg": "jpeg", "js": "javascript",
    "json": "json", "m4": "m4", "md": "markdown", "npy": "npy", "npz": "npz", "onnx": "onnx",
    "pdf": "pdf", "pem": "pem", "pkl": "pickle", "png": "png", "po": "po", "proto": "proto",
    "py": "python", "pyc": "pythonbytecode", "rst": "rst", "sh": "shell", "so": "elf",
    "svg": "svg", "toml": "toml", "ts": "typescript", "ttf": "ttf", "wav": "wav", "woff": "woff",
    "woff2": "woff2", "xml": "xml", "xz": "xz", "yaml": "yaml", "zip": "zip",
}  # fmt: skip
"""Types by extension. Not `.txt`, `.h` and `.html`: anything, C or C++, and mostly templates."""
UNSEEN = ("afm", "aifc", "aiff", "arff", "au", "dectest", "mat", "mo", "mplstyle", "pb", "sav")
"""Extensions of formats that are none of Magika's types, such as fonts' metrics and catalogues."""
_LEAST, _BLOCK = 64, 4096


class Files(NamedTuple):
    """Files of a disk.

    Attributes:
        tokens: What Magika reads of each.
        types: The type of each, or the extension of one that it never saw.
    """

    tokens: Int[np.ndarray, "files 2048"]
    types: np.ndarray

    def half(self, which: int, batch: int) -> "Files":
        """Every other file; where they are more than a batch, a number of full ones."""
        count = len(self.types[which::2])
        full = max(count // batch * batch, min(count, batch))
        # Those that are left out are from all over.
        kept = np.linspace(0, count - 1, full).astype(int)
        return Files(self.tokens[which::2][kept], self.types[which::2][kept])


def read_files(folder: str, count: int) -> tuple[Files, Files]:
    """Reads files of known types, and of others.

    Args:
        folder: Where to look; Python's standard library and packages if empty.
        count: The most files of an extension. They are chosen by a hash of their paths, so that a
            disk gives the same ones again.
    """
    by_ending: dict[str, list[tuple[str, Path]]] = {}
    for root in [Path(folder)] if folder else _libraries():
        for path in root.rglob("*.*"):
            ending = path.suffix[1:].lower()
            if (ending in KNOWN or ending in UNSEEN) and path.is_file() and not path.is_symlink():
                name = hashlib.sha256(str(path.relative_to(root)).encode()).hexdigest()
                by_ending.setdefault(ending, []).append((name, path))
    known, unseen = (
        [made for ending in endings for made in _first(sorted(by_ending.get(ending, [])), count)]
        for endings in (KNOWN, UNSEEN)
    )
    return _stack(known), _stack(unseen)


def _libraries() -> list[Path]:
    paths = sysconfig.get_paths()
    roots = {Path(paths[name]).resolve() for name in ("stdlib", "purelib", "platlib")}
    # One in another would count its files twice.
    return sorted(r for r in roots if not any(o in r.parents for o in roots))


def _first(paths: list[tuple[str, Path]], count: int) -> Iterator[tuple[np.ndarray, str]]:
    """Reads files until there are enough; copies of one file are one."""
    seen: set[bytes] = set()
    for _, path in paths:
        if len(seen) == count:
            return
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(_BLOCK)
            file.seek(max(0, size - _BLOCK))
            ends = file_tokens(head), file_tokens(file.read())
        tokens = np.concatenate([ends[0][:1024], ends[1][1024:]])
        if size >= _LEAST and tokens.tobytes() not in seen:
            seen.add(tokens.tobytes())
            ending = path.suffix[1:].lower()
            yield tokens, KNOWN.get(ending, ending)


def _stack(made: list[tuple[np.ndarray, str]]) -> Files:
    tokens = np.stack([t for t, _ in made]) if made else np.zeros((0, 2048), np.int32)
    return Files(tokens, np.array([label for _, label in made]))
