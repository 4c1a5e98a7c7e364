"""A convolution of ResNet-18 by bytes, in float and by planes."""

import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tvm
from jax import lax
from jaxeff_export import export
from jaxeff_export.compiler import bind_parameters, compile_module
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.operators.integer import IntegerKernelError, integer_operators
from tvm import relax

from experiments.contests.tvm import host, module_meter
from experiments.timing import Meter, measure_rounds, ratio, summary
from jaxeff.compression.integers import q_conv2d

IMAGE, KERNEL = (1, 16, 16, 128), (3, 3, 128, 128)
MACS = 16 * 16 * 128 * 9 * 128
PAIRS = ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (4, 4), (2, 8), (8, 8))
BYTES, BITS = 64, 512 / 3
"""Products of an instruction: `vpdpbusd`; `vpand`, `vpopcntd` and `vpaddd` together."""


def crossover(rounds: int, pairs: int) -> list[dict[str, Any]]:
    """A row per pair of widths: times, and quotients of the same rounds."""
    target = host()
    meters: dict[str, Meter] = {"float32": _float(target), "int8": _integer(8, 8, target, False)}
    try:
        for a, w in PAIRS[:pairs]:
            meters[f"{a} x {w}"] = _integer(a, w, target, True)
    except IntegerKernelError:
        pass  # a processor that counts no bits of vectors has no such rows
    times = measure_rounds(meters, rounds, 0.002)
    rows = []
    for name, values in times.items():
        row: dict[str, Any] = {"table": "crossover", "bits": name, **summary(values)}
        row["gmacs"] = MACS / statistics.median(values) / 1e6
        row["over_int8"] = ratio(times["int8"], values)
        row["over_float32"] = ratio(times["float32"], values)
        if "x" in name:
            a, w = (int(n) for n in name.split(" x "))
            row["product"], row["expected_over_int8"] = a * w, BITS / (a * w) / BYTES
        rows.append(row)
    return rows


def _integer(a: int, w: int, target: Any, by_planes: bool) -> Meter:
    rng = np.random.default_rng(0)
    most = max(1, 2 ** (w - 1) - 1)
    x = rng.integers(0, 2**a, IMAGE).astype(np.uint8)
    weights = rng.integers(-most, most + 1, KERNEL).astype(np.int8)
    if w == 1:
        weights = np.where(weights < 0, -1, 1).astype(np.int8)

    def f(params: Any, x: Any) -> Any:
        return q_conv2d(
            x, *params, strides=(1, 1), padding=(1,) * 4, dilation=(1, 1),
            groups=1, input_zero=0, result="codes", zero=0, lower=0,
            upper=2**a - 1, shortcut="none", shortcut_zero=0, weight_bits=w, activation_bits=a,
        )  # fmt: skip

    params = weights, np.zeros(KERNEL[-1], np.int32), np.full(KERNEL[-1], 1e-4, np.float32)
    return _meter(f, params, x, target, integer_operators(target, by_planes))


def _float(target: Any) -> Meter:
    key = jax.random.key(0)

    def f(params: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(
            x, params[0], (1, 1), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        return jax.nn.relu(y + params[1])

    params = jax.random.normal(key, KERNEL), jnp.zeros(KERNEL[-1])
    return _meter(f, params, jax.random.normal(key, IMAGE), target, {})


def _meter(f: Any, params: Any, x: Any, target: Any, composites: Any) -> Meter:
    module = import_stablehlo(export(f, (params, x)).stablehlo, composites=composites)
    lifted = bind_parameters(module, len(params), target)
    bound = [tvm.runtime.tensor(np.asarray(p)) for p in params]
    if lifted.derive is not None:
        machine = relax.VirtualMachine(compile_module(lifted.derive), tvm.cpu())
        bound += list(machine["main"](*bound))
    taken = [*(bound[i] for i in lifted.operands), tvm.runtime.tensor(np.asarray(x))]
    return module_meter(lifted.main, taken, target)
