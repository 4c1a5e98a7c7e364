"""Default schedules: what they know of a processor."""

import pytest
from jaxeff_export.compiler.scheduling import Machine
from tvm.target import Target


@pytest.mark.parametrize(
    ("settings", "lanes", "registers"),
    [
        ({"mcpu": "skylake-avx512"}, 16, 32),
        ({"mcpu": "haswell"}, 8, 16),
        ({"mcpu": "x86-64-v2"}, 4, 16),
        ({"mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}, 4, 32),
    ],
)
def test_vectors_are_those_of_the_target(settings, lanes, registers):
    triple = {"mtriple": "x86_64-linux-gnu"}
    target = Target({"kind": "llvm", "num-cores": 4, **triple, **settings})
    assert Machine.of(target) == Machine(lanes, registers, cores=4)
