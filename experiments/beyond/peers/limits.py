"""The speed of compiled operators, over that of a core which does nothing but multiply, or read."""

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxeff_export
import numpy as np
from flax import nnx

from experiments.beyond.peers import bundles, rows
from experiments.beyond.peers.__main__ import Settings

PEER, SOURCE = "the core's limit", Path(__file__).with_name("core_limits.c")
STEPS = 200_000
"""Steps of a measurement of products: some milliseconds."""


@dataclass(frozen=True)
class Core:
    """What a core does at most, by a library in C.

    Attributes:
        library: The library of `core_limits.c`, for this processor.
    """

    library: Any

    @classmethod
    def compiled(cls, folder: Path) -> "Core | None":
        """Compiles the library; None without a compiler, or where it isn't for this processor."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        target = folder / "core_limits.so"
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        done = subprocess.run(
            [compiler, *flags, str(SOURCE), "-o", str(target)], capture_output=True, check=False
        )
        if done.returncode:
            return None
        library = ctypes.CDLL(str(target))
        for name in ("bytes_multiplied", "floats_multiplied", "bytes_read"):
            getattr(library, name).restype = ctypes.c_int64
        return cls(library)

    def products(self, name: str) -> float:
        """Measures products a second, of `bytes` or of `floats`."""
        kept = (ctypes.c_float * 1024)()
        call = getattr(self.library, f"{name}_multiplied")
        since = time.process_time()
        done = call(ctypes.c_int64(STEPS), kept)
        return float(done / (time.process_time() - since))

    def bandwidth(self, array: np.ndarray) -> float:
        """Measures bytes a second of reading an array."""
        kept = (ctypes.c_float * 1024)()
        start = array.ctypes.data_as(ctypes.c_void_p)
        since = time.process_time()
        done = self.library.bytes_read(start, ctypes.c_int64(array.nbytes), kept)
        return float(done / (time.process_time() - since))


def limits(settings: Settings) -> list[rows.Row]:
    """Measures products of matrices, a convolution, and a stack of dense layers for one input."""
    size, pixels, wide = (64, 8, 128) if settings.narrow else (512, 56, 2048)
    with tempfile.TemporaryDirectory() as folder:
        core = Core.compiled(Path(folder))
        if core is None:
            missing = "a compiler in C, and a processor with AVX2"
            row = {"what": "products of a core", "peer": PEER, "unit": "ratio", "asked": 1}
            return [row | {"missing": missing}]
        square = bundles.functional(nnx.Linear(size, size, rngs=nnx.Rngs(0)), size, size)
        conv = nnx.Conv(64, 64, (3, 3), rngs=nnx.Rngs(0))
        windows = bundles.functional(conv, 1, pixels, pixels, 64)
        measured_rows = []
        for name, case, products in (
            (f"{size} x {size} x {size}", square, size**3),
            ("3 x 3, 64 to 64 channels", windows, pixels**2 * 9 * 64**2),
        ):
            for form, of, asked in (("bytes", "int8", 0.75), ("floats", "float", 0.88)):
                bundle = _deployed(*case, form)

                def fastest(form: str = form, products: int = products) -> float:
                    return products / core.products(form)

                what = f"products of {name}, {of}"
                measured_rows.append(_row(what, asked, bundle, fastest, settings.rounds))
        return [*measured_rows, _stack(core, wide, settings.rounds)]


def _deployed(f: Any, params: Any, x: np.ndarray, form: str) -> Any:
    g, arrays = bundles.in_codes(f, params, x) if form == "bytes" else (f, params)
    return jaxeff_export.deploy(g, (arrays, x))


def _stack(core: Core, wide: int, rounds: int) -> rows.Row:
    """Measures dense layers of one input, which read every weight once."""
    depth = 4
    layers = [nnx.Linear(wide, wide, rngs=nnx.Rngs(i)) for i in range(depth)]
    f, params, x = bundles.functional(nnx.Sequential(*layers), 1, wide)
    bundle = jaxeff_export.deploy(f, (params, x))
    weights = np.ones((depth * wide * wide,), np.float32)

    def fastest() -> float:
        return weights.nbytes / core.bandwidth(weights)

    return _row(f"{depth} dense layers of {wide} units, one input", 0.95, bundle, fastest, rounds)


def _row(
    what: str, asked: float, bundle: Any, fastest: Callable[[], float], rounds: int
) -> rows.Row:
    """Measures operators in turns with the core: seconds over the least that it could take."""
    pairs = []
    for _ in range(rounds):
        least = fastest()
        pairs.append((bundles.kernels_ms(bundle), least * 1e3))
    row = {"what": what, "peer": PEER, "unit": "ratio", "asked": 1 / asked}
    return row | rows.ratio(pairs) | {"agrees": bool(bundle.check())}


SUBJECTS = {"limits": limits}
