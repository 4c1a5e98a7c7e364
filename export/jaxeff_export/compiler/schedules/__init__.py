"""Chooses how loops are run: tiles, vectors, threads, and which loops are joined."""

from jaxeff_export.compiler.schedules._joining import join_siblings
from jaxeff_export.compiler.schedules._merging import merge_blocks
from jaxeff_export.compiler.schedules._scheduling import (
    ANY_MACHINE,
    Machine,
    RegisterTile,
    divisors,
    schedule_cpu,
    schedule_kernel,
    tile_of,
)

__all__ = [
    "ANY_MACHINE",
    "Machine",
    "RegisterTile",
    "divisors",
    "join_siblings",
    "merge_blocks",
    "schedule_cpu",
    "schedule_kernel",
    "tile_of",
]
