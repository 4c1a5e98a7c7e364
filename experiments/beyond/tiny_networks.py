"""MLPerf Tiny's four reference networks as C libraries for an emulated Cortex-M4, and a submission.

    python -m experiments.beyond.tiny_networks [--fast]

Each network is converted to int8 and exported as a function of the bytes that the benchmark's
runner sends. qemu counts the instructions of a call, and the emulated board's bits are compared
with JAX's. Parameters are random, and so nothing is said of accuracy: instructions don't depend on
them. What was measured goes into submissions' folders, of the open division, beside the results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
from flax import nnx
from jaxeff_export import mlperf_tiny
from jaxeff_export.clib import count_instructions

import jaxeff
from experiments import harness as h
from experiments.beyond.microcontroller.moments import has_toolchain
from experiments.harness import Row, Run
from jaxeff import nn
from jaxeff.compression import ptq

CORE = "cortex-m4"
NETWORKS: dict[str, tuple[Callable[..., nnx.Module], tuple[int, ...], str, float, float]] = {
    # the network, its input, and the bytes that come: dtype, zero and step
    "kws": (nn.DSCNN, (49, 10, 1), "int8", 0.0, 1 / 32),
    "ic": (nn.ResNet8, (32, 32, 3), "uint8", 128.0, 1 / 64),
    "vww": (nn.MobileNetV1, (96, 96, 3), "uint8", 128.0, 1 / 64),
    "ad": (nn.DenseAutoencoder, (640,), "float32", 0.0, 1.0),
}


@dataclass(frozen=True)
class Settings:
    """Which networks there are."""

    networks: tuple[str, ...] = tuple(NETWORKS)  # by their names in a submission


def measure(run: Run[Settings], task: str) -> list[Row]:
    """Converts, exports and counts one network."""
    make, shape, dtype, zero, step = NETWORKS[task]
    module = make(rngs=nnx.Rngs(run.seed))
    module.eval()
    f, params = jaxeff.functional(module)
    x = jax.random.normal(run.key, (64, *shape))
    g, codes, _ = ptq(f, params, x[:64])

    def on_bytes(codes: Any, data: jax.Array) -> jax.Array:
        values = (data.reshape(-1, *shape).astype(jnp.float32) - zero) * step
        outputs = g(codes, values)
        if task == "ad":
            return ((outputs - values) ** 2).mean(-1)
        return jax.nn.softmax(outputs)

    codes_of_x = jnp.round(x[:1] / step + zero) if dtype != "float32" else x[:1]
    example = codes_of_x.reshape(1, -1).astype(dtype)
    row: Row = {"benchmark": task, "core": CORE}
    cost = jaxeff.cost(f, params, x[:1])
    row |= {"parameters": cost.params, "macs": cost.macs}
    if not has_toolchain(CORE):
        return [row]
    bundle = jaxeff_export.deploy(on_bytes, (codes, example), target=CORE)
    row["same"] = int(bundle.check(f"emulated:{CORE}").passed)
    with tempfile.TemporaryDirectory() as home:
        library = bundle.export_c(Path(home) / "c", name=task, flash="4m", ram="4m")
        row["instructions"] = count_instructions(library, CORE).total
        row["per_mac"] = row["instructions"] / cost.macs
        row["workspace"] = library.sizes.workspace
        row["flash"] = library.sizes.code + library.sizes.parameters
        entry = mlperf_tiny.Entry(task, library, instructions=row["instructions"])
        # A folder of its own for each, so that a run that was cut short keeps the others.
        mlperf_tiny.submission(
            run.folder / "submission" / task, [entry], submitter="jaxeff", system="emulated-m4",
            facts={"Board Name": "MPS2 AN386, emulated by qemu", "Processor(s) Name": "Cortex-M4",
                   "Quantization Method": "int8 after training"},
        )  # fmt: skip
    return [row]


COLUMNS = (
    "benchmark", "core", "parameters", "macs", "instructions", "per_mac", "workspace", "flash",
    "same",
)  # fmt: skip

STUDY = h.Study(
    "tiny_networks", __doc__,
    {
        "fast": Settings(networks=("ad",)),
        "default": Settings(networks=("ad", "kws")),
        "full": Settings(),
    },
    (h.Part(lambda run: list(run.settings.networks), measure),),
    (
        h.Claim(
            "{benchmark}: a {core} has JAX's results", "same", h.equals(1), 1, h.having("same")
        ),
        h.Claim(
            "{benchmark}: instructions a multiply-add", "per_mac", h.at_most(1.5), 1.5,
            h.having("per_mac"),
        ),
    ),
    (
        h.Plot(
            "instructions",
            h.Bars(
                "{benchmark}", {"per_mac": "of a call"}, h.having("per_mac"),
                axes={"ylabel": "instructions a multiply-add"},
            ),
        ),
    ),
    (h.Listing("int8 on an emulated core", COLUMNS, h.having("benchmark")),),
    differences=(
        "Parameters of the reference weren't at hand: a submission would be of the open division.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
