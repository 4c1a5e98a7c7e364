"""Programs as users write them, from one layer to a whole training loop, a family in each file."""

from functools import cache

from tests.conformance.harnesses import Case
from tests.conformance.programs import (
    arrays,
    control,
    layers,
    networks,
    quantized,
    sampling,
    science,
    sequences,
    training,
    transforms,
)

FAMILIES = (
    layers,
    networks,
    sequences,
    training,
    sampling,
    arrays,
    science,
    quantized,
    transforms,
    control,
)


@cache
def cases() -> dict[str, Case]:
    """Every program, by name."""
    found = [case for module in FAMILIES for case in module.FAMILY.cases]
    by_name = {case.name: case for case in found}
    assert len(by_name) == len(found), "two programs of one name"
    return by_name
