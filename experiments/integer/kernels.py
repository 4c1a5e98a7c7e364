"""Single kernels: a convolution of ResNet-18 by bytes, in float and by planes; depthwise ones."""

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


DEPTHWISE = (
    ((1, 56, 56, 128), (3, 3, 1, 128), 1),
    ((1, 28, 28, 96), (3, 3, 1, 96), 2),
    ((1, 14, 14, 480), (5, 5, 1, 480), 1),
)
"""Images, kernels and strides, as in networks for telephones."""


def depthwise(rounds: int) -> list[dict[str, Any]]:
    """Depthwise convolutions in int8 and float32."""
    target = host()
    rows = []
    for image, kernel, stride in DEPTHWISE:
        meters = {
            "float32": _float(target, image, kernel, stride),
            "int8": _integer(8, 8, target, None, image, kernel, stride),
        }
        times = measure_rounds(meters, rounds, 0.002)
        for name, values in times.items():
            row: dict[str, Any] = {"table": "depthwise", "image": "x".join(map(str, image[1:]))}
            row |= {"kernel": f"{kernel[0]}x{kernel[1]}", "stride": stride, "arithmetic": name}
            over = ratio(times["float32"], values)
            rows.append({**row, **summary(values), "over_float32": over})
    return rows


def _integer(
    a: int, w: int, target: Any, by_planes: bool | None,
    image: Any = IMAGE, kernel: Any = KERNEL, stride: int = 1,
) -> Meter:  # fmt: skip
    rng = np.random.default_rng(0)
    most = max(1, 2 ** (w - 1) - 1)
    x = rng.integers(0, 2**a, image).astype(np.uint8)
    weights = rng.integers(-most, most + 1, kernel).astype(np.int8)
    if w == 1:
        weights = np.where(weights < 0, -1, 1).astype(np.int8)
    features = kernel[-1]
    pad = kernel[0] // 2

    def f(params: Any, x: Any) -> Any:
        return q_conv2d(
            x, *params, strides=(stride, stride), padding=(pad,) * 4, dilation=(1, 1),
            groups=image[-1] // kernel[2], input_zero=0, result="codes", zero=0, lower=0,
            upper=2**a - 1, shortcut="none", shortcut_zero=0, weight_bits=w, activation_bits=a,
        )  # fmt: skip

    params = weights, np.zeros(features, np.int32), np.full(features, 1e-4, np.float32)
    return _meter(f, params, x, target, integer_operators(target, by_planes))


def _float(target: Any, image: Any = IMAGE, kernel: Any = KERNEL, stride: int = 1) -> Meter:
    key, pad = jax.random.key(0), kernel[0] // 2

    def f(params: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(
            x, params[0], (stride, stride), [(pad, pad)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=image[-1] // kernel[2],
        )  # fmt: skip
        return jax.nn.relu(y + params[1])

    params = jax.random.normal(key, kernel), jnp.zeros(kernel[-1])
    return _meter(f, params, jax.random.normal(key, image), target, {})


def _meter(f: Any, params: Any, x: Any, target: Any, composites: Any) -> Meter:
    module = import_stablehlo(export(f, (params, x)).stablehlo, composites=composites)
    lifted = bind_parameters(module, len(params), target)
    bound = [tvm.runtime.tensor(np.asarray(p)) for p in params]
    if lifted.derive is not None:
        machine = relax.VirtualMachine(compile_module(lifted.derive), tvm.cpu())
        bound += list(machine["main"](*bound))
    taken = [*(bound[i] for i in lifted.operands), tvm.runtime.tensor(np.asarray(x))]
    return module_meter(lifted.main, taken, target)
