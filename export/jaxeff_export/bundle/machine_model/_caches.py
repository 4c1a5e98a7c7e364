"""Sizes and speeds of a core's caches: the other half of a static model.

Sizes are those of the boards that the named targets are for (Raspberry Pi 3, 4 and 5), and of a
core of AMD's Zen 5. Speeds are nominal, of a core that streams alone; nothing was measured. Those
of a first level are the width of a core's loads; what it gets from farther away depends on the chip
around it, and is a round figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIB, MIB = 1024, 1024**2


@dataclass(frozen=True)
class Level:
    """A cache, or memory.

    Attributes:
        name: such as `L1`.
        size: bytes it holds.
        speed: bytes it gives in a cycle.
    """

    name: str
    size: float
    speed: float


CORES: Mapping[str, tuple[Level, ...]] = {
    "cortex-a53": (Level("L1", 32 * KIB, 8), Level("L2", 512 * KIB, 4), Level("memory", 1e30, 2)),
    "cortex-a72": (Level("L1", 32 * KIB, 16), Level("L2", MIB, 8), Level("memory", 1e30, 3)),
    "cortex-a76": (
        Level("L1", 64 * KIB, 32),
        Level("L2", 512 * KIB, 16),
        Level("L3", 2 * MIB, 8),
        Level("memory", 1e30, 4),
    ),
    "znver5": (
        Level("L1", 48 * KIB, 128),
        Level("L2", MIB, 64),
        Level("L3", 32 * MIB, 32),
        Level("memory", 1e30, 8),
    ),
}


def level_of(core: str, size: int) -> Level | None:
    """Finds the smallest level of a core that holds so many bytes.

    There is none for a core without figures.
    """
    return next((level for level in CORES.get(core, ()) if size <= level.size), None)
