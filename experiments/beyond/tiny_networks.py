"""MLPerf Tiny's four reference networks as C libraries for an emulated Cortex-M4, and a submission.

    python -m experiments.beyond.tiny_networks [--fast]

Each network is converted to int8 and exported as a function of the bytes that the benchmark's
runner sends. qemu counts the instructions of a call, and the emulated board's bits are compared
with JAX's. The keyword spotter learns Speech Commands before, as far as it is at hand (split by
speaker), and is judged in integers. The others have random parameters: no visual wake words and no
machines' sounds are at hand, and images take longer to learn; instructions don't depend on them.
What was measured goes into submissions' folders, of the open division, beside the results.
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
import numpy as np
from flax import nnx
from jaxeff_export import mlperf_tiny
from jaxeff_export.clib import count_instructions

import jaxeff
from experiments import harness as h
from experiments.beyond.keyword_spotting.recordings import features, speech
from experiments.beyond.microcontroller.moments import has_toolchain
from experiments.harness import Row, Run
from experiments.recipes import cosine_adam
from jaxeff import nn, training
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
    """Which networks there are, and how the spotter learns."""

    networks: tuple[str, ...] = tuple(NETWORKS)  # by their names in a submission
    epochs: int = 1  # of the spotter; 0: random parameters, and no data are needed


def measure(run: Run[Settings], task: str) -> list[Row]:
    """Trains, converts, exports and counts one network."""
    make, shape, dtype, zero, step = NETWORKS[task]
    module = make(rngs=nnx.Rngs(run.seed))
    module.eval()
    f, params = jaxeff.functional(module)
    x = jax.random.normal(run.key, (64, *shape))
    tests = None
    if task == "kws" and run.settings.epochs:
        x, tests, params = _learned(run, f, params, step)
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
    if tests is not None:
        logits = np.concatenate([jax.jit(g)(codes, part) for part in np.array_split(tests[0], 8)])
        row["accuracy"] = float((logits.argmax(1) == tests[1]).mean())
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


def _learned(run: Run[Settings], f: Any, params: Any, step: float) -> tuple[Any, Any, Any]:
    """Trains the spotter; normalization stays as it begins, and is learnt as an affine map."""
    sounds = speech()
    parts = [(features(audio)[:, :, 0, :, None], y) for audio, y in (sounds.train, sounds.test)]
    mean, deviation = parts[0][0].mean((0, 1)), parts[0][0].std((0, 1))
    # On the grid of the bytes that come, which a board's front end makes.
    grid = [
        (step * np.clip(np.round((x - mean) / deviation / step), -128, 127).astype(np.float32), y)
        for x, y in parts
    ]
    steps = len(grid[0][1]) // 64 * run.settings.epochs
    result = training.fit(
        run.key, training.cross_entropy(f), params, grid[0], optimizer=cosine_adam(3e-3, steps),
        epochs=run.settings.epochs, batch_size=64,
    )  # fmt: skip
    return jnp.asarray(grid[0][0]), grid[1], result.params


COLUMNS = (
    "benchmark", "core", "parameters", "macs", "instructions", "per_mac", "workspace", "flash",
    "same",
    "accuracy",
)  # fmt: skip

STUDY = h.Study(
    "tiny_networks", __doc__,
    {
        "fast": Settings(networks=("ad",), epochs=0),
        "default": Settings(),
        "full": Settings(epochs=40),
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
        "The spotter learns from Speech Commands' test archive alone, split by speaker.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
