"""Chooses how loops are run: tiles, vectors, threads, and which loops are joined."""

from jaxeff_export.compiler.schedules._joining import join_siblings
from jaxeff_export.compiler.schedules._merging import merge_blocks
from jaxeff_export.compiler.schedules._register_tiles import (
    ANY_MACHINE,
    Machine,
    RegisterTile,
    divisors,
    tile_of,
)
from jaxeff_export.compiler.schedules._scheduling import schedule_cpu, schedule_kernel

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
