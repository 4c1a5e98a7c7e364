"""From a bundle to a C library: the same kernels, called from C."""

from __future__ import annotations

from pathlib import Path

from jaxeff_export.bundle.building import Example, NamedTarget, c_order, lift
from jaxeff_export.bundle.bundle import Bundle
from jaxeff_export.clib.library import CLibrary, write_library
from jaxeff_export.clib.sizes import bytes_of
from jaxeff_export.schedules.database import TuningDatabase


def export_c(
    bundle: Bundle,
    path: str | Path,
    *,
    name: str | None,
    embed: bool,
    flash: int | str | None,
    ram: int | str | None,
    database: str | Path | None,
    threads: int,
) -> CLibrary:
    """Write a bundle's function as a C library; see `Bundle.export_c`."""
    from jaxeff_export.schedules.replaying import tuned_schedules

    target, example = NamedTarget.of_bundle(bundle), Example.of_bundle(bundle)
    tuned = None
    if database is not None:
        tuned = tuned_schedules(TuningDatabase(database), target.settings)
    order = c_order(
        example,
        target,
        lift(example, target),
        bundle.operands,
        name=name or Path(path).absolute().name,
        tuned=tuned,
        embed=embed,
        flash=None if flash is None else bytes_of(flash),
        ram=None if ram is None else bytes_of(ram),
        threads=threads,
    )
    return write_library(order, Path(path))
