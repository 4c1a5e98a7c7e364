"""From what a bundle was built from to a C library: the same kernels, called from C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxeff_export.bundle._example import Example, NamedTarget, c_order, lift
from jaxeff_export.bundle.files import Manifest
from jaxeff_export.clib import CLibrary, bytes_of, write_library
from jaxeff_export.schedules import TuningDatabase


def export_c(
    example: Example,
    manifest: Manifest,
    operands: Sequence[np.ndarray],
    path: str | Path,
    *,
    name: str | None,
    embed: bool,
    flash: int | str | None,
    ram: int | str | None,
    database: str | Path | None,
    threads: int,
    style: str,
) -> CLibrary:
    """Writes a bundle's function as a C library.

    Args:
      example: what the bundle was built from.
      manifest: the bundle's.
      operands: the bound arrays that the function takes first.
      path: same as for `Bundle.export_c`, like all that follow.
      name: same as for `Bundle.export_c`.
      embed: same as for `Bundle.export_c`.
      flash: same as for `Bundle.export_c`.
      ram: same as for `Bundle.export_c`.
      database: same as for `Bundle.export_c`.
      threads: same as for `Bundle.export_c`.
      style: same as for `Bundle.export_c`.
    """
    # Start-up time: the compiler loads TVM.
    from jaxeff_export.compiler import tuned_schedules

    # The bundle's own target, so that both have the same kernels.
    target = NamedTarget.of_manifest(manifest)
    tuned = None
    if database is not None:
        tuned = tuned_schedules(TuningDatabase(database), target.settings)
    order = c_order(
        example,
        target,
        lift(example, target),
        operands,
        name=name or Path(path).absolute().name,
        rounds_inputs=manifest.rounds_inputs,
        tuned=tuned,
        embed=embed,
        flash=None if flash is None else bytes_of(flash),
        ram=None if ram is None else bytes_of(ram),
        threads=threads,
        style=style,
    )
    return write_library(order, Path(path))
