"""Weights of codes: decoded by the layer that reads them few times, before one that reads many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_close, export, run
from jaxeff_export.clib._kernels import compile_kernels
from jaxeff_export.compiler import compilation_target, fused_kernels, schedule_module
from jaxeff_export.compiler.passes import lift_parameters
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.targets import resolve_target
from tvm.target import Target

import jaxeff

CODES = (np.arange(20 * 12) * 37 % 255 - 127).astype(np.int8).reshape(20, 12)
STEPS = np.linspace(0.01, 0.02, 12, dtype=np.float32)
BIAS = np.linspace(-1, 1, 12, dtype=np.float32)
X = np.linspace(-2, 1, 20 * 9, dtype=np.float32).reshape(9, 20)
ROUNDING = 20 * np.finfo(np.float32).eps * (np.abs(X) @ np.abs(CODES * STEPS)).max()
"""What sums of 20 products may differ by, whatever their order."""
TARGET = {**resolve_target("host"), "num-cores": 1}


def dense(codes, steps, bias, x):
    return jax.nn.relu(x @ (codes.astype(jnp.float32) * steps) + bias)


def moments(codes, steps, bias, x):
    """Both moments' weights are decoded, the second by a value that it repeats."""
    std = codes.astype(jnp.float32) * (0.1 * steps)
    posterior = jaxeff.Gaussian(codes.astype(jnp.float32) * steps, std * std)
    layer = jaxeff.moments(lambda p, x: jax.nn.relu(x @ p["w"] + p["b"]), method="diagonal")
    return layer({"w": posterior, "b": jaxeff.Gaussian(bias, bias * bias)}, x)


def several(codes, steps, bias, x):
    """A weight that two layers read."""
    w = codes.astype(jnp.float32) * steps
    return jnp.tanh(x @ w + bias) @ w.T


def kernels(module):
    return [name.name_hint for name in module.get_global_vars() if name.name_hint != "main"]


@pytest.mark.parametrize(
    ("function", "batch", "decodes"),
    [(dense, 1, 1), (dense, 8, 1), (dense, 9, 0), (moments, 2, 1), (several, 1, 0)],
)
def test_what_is_read_few_times_is_decoded_there(function, batch, decodes):
    given = (CODES, STEPS, BIAS, X[:batch])
    exported = export(function, *given, keep_unused=True)
    parts = lift_parameters(import_stablehlo(exported), 3)
    fused = fused_kernels(parts.main, Target(TARGET))
    names = kernels(fused)
    assert sum(name.startswith("decoded_") for name in names) == decodes
    derived = run(parts.derive, *given[:3]) if parts.derive else []
    operands = [[*given[:3], *derived][index] for index in parts.operands]
    for ours, theirs in zip(
        run(parts.main, *operands, given[-1]),
        jax.tree.leaves(jax.jit(function)(*given)),
        strict=True,
    ):
        assert_close(ours, np.asarray(theirs), atol=ROUNDING)


def test_no_memory_is_taken_for_decoded_weights(tmp_path):
    exported = export(moments, CODES, STEPS, BIAS, X[:1], keep_unused=True)
    parts = lift_parameters(import_stablehlo(exported), 3)
    module, where = schedule_module(parts.main, TARGET), compilation_target(TARGET)
    compiled = compile_kernels(module, where, "net", tmp_path / "kernels.o")
    taken = [s.size for kernel in compiled.values() for s in kernel.scratch]
    assert max(taken, default=0) < 4 * CODES.size
    assert max(kernel.stack for kernel in compiled.values()) < 4 * CODES.size


def test_a_convolution_has_its_weights_decoded_before():
    codes = CODES[:18].reshape(3, 3, 2, 12)

    def convolution(codes, steps, x):
        w = codes.astype(jnp.float32) * steps
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    x = np.linspace(-1, 1, 5 * 5 * 2, dtype=np.float32).reshape(1, 5, 5, 2)
    exported = export(convolution, codes, STEPS, x, keep_unused=True)
    parts = lift_parameters(import_stablehlo(exported), 2)
    names = kernels(fused_kernels(parts.main, Target(TARGET)))
    assert names
    assert not [name for name in names if name.startswith("decoded_")]
