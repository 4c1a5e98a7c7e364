"""Runs a sweep of the study: one compiled program for all levels that fit, row by row."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.harness import Row
from experiments.recipes import cosine_adam
from experiments.trainable import Images, Network, load_images, trainable
from experiments.walking_noise.recipe import Case, Settings, Sweep
from jaxeff.nn import MLP, LeNet5
from jaxeff.noise import Additive, Mixed, Multiplicative, walking_noise
from jaxeff.robustness import noisy_accuracy, weight_rms
from jaxeff.training import SweepResult, cross_entropy, sweep


@dataclass(frozen=True, eq=False)
class Bench:
    """A network of the study with all that its trainings and measurements share."""

    # the study's key: sweeps of one case share initial parameters, batches and draws
    key: jax.Array
    case: Case  # the network and its data
    network: Network  # as functions
    images: Images  # the data
    settings: Settings  # the study's size
    folder: Path  # where finished trainings are kept

    def steps(self, epochs: int) -> int:
        """Gradient steps of so many epochs."""
        return epochs * (len(self.images.train[1]) // self.settings.batch_size)


def bench(key: jax.Array, case: Case, settings: Settings, folder: Path) -> Bench:
    """Loads the data of a case and builds its network."""
    images = load(case, settings)
    return Bench(key, case, build(case, images.shape), images, settings, folder)


def load(case: Case, settings: Settings) -> Images:
    """The data of a case, pixels from 0 to 1."""
    return load_images(case.data, settings.images, settings.test_images, standardize=False)


def build(case: Case, shape: tuple[int, int, int]) -> Network:
    """The network of a case for images of a shape."""
    height, _, channels = shape

    def make(rngs: nnx.Rngs) -> nnx.Module:
        if case.network == "mlp":
            widths = (int(np.prod(shape)), 64, 64, 64, 10)
            return MLP(widths, batch_norm=case.batch_norm, rngs=rngs)
        return LeNet5(
            10, channels, size=height, padding="VALID", batch_norm=case.batch_norm, rngs=rngs
        )

    network = trainable(make, shape)

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, state = network.init(key)
        for i, name in enumerate(sorted(params)):
            if "kernel" in params[name]:
                params[name] = uniform_by_fan_in(jax.random.fold_in(key, i), params[name])
        return params, state

    return dataclasses.replace(network, init=init)


def uniform_by_fan_in(key: jax.Array, layer: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Weights and biases from U(-1, 1) / sqrt(fan-in), PyTorch's default for these layers."""
    bound = 1 / np.sqrt(np.prod(layer["kernel"].shape[:-1]))
    keys = jax.random.split(key, len(layer))
    return {
        name: jax.random.uniform(k, leaf.shape, leaf.dtype, -bound, bound)
        for k, (name, leaf) in zip(keys, sorted(layer.items()), strict=True)
    }


CHUNKS = {"mlp": 64, "lenet5": 1}
"""Replicates trained at once on a processor; vmapped convolutions are slow there."""
ACCELERATOR_CHUNK = 256


def run(bench: Bench, plan: Sweep) -> tuple[list[Row], SweepResult]:
    """Trains and tests every replicate of a sweep, a row for each; the result has the models."""
    network = bench.network
    spec, labels = specs(plan, network)

    def score(key: jax.Array, params: Any, state: Any, spec: Any) -> dict[str, Any]:
        at_one = jax.tree.map(lambda level: level[None], spec)
        return {
            "accuracy": accuracies(key, network, params, state, at_one, bench.images.test)[0],
            **{f"weight_rms/{layer}": rms for layer, rms in weight_rms(params).items()},
        }

    result = _swept(
        bench, plan.name, plan.name,
        lambda spec: cross_entropy(jaxeff.noisy(network.train, spec), keyed=True, mutable=True),
        spec, plan.epochs, plan.seeds, score=score,
        keep=plan.kind == "mul" and plan.where == "layers",  # for the look at their activations
    )  # fmt: skip
    rows = [
        {
            "case": str(plan.case), "network": plan.case.network, "data": plan.case.data,
            "batch_norm": plan.case.batch_norm, "kind": plan.kind, "where": plan.where, **label,
            "seed": seed, "accuracy": float(result.scores["accuracy"][seed, i]),
            "weight_rms": _weights_before(label["site"], network, result.scores, seed, i),
            "diverged": bool(result.diverged[seed, i]),
            "epochs": plan.epochs,
        }
        for seed in range(plan.seeds)
        for i, label in enumerate(labels)
    ]  # fmt: skip
    return rows, result


def train_clean(bench: Bench, *, epochs: int, seeds: int) -> SweepResult:
    """Networks trained without noise, one per seed; the axis of settings has one entry."""
    return _swept(
        bench, f"{bench.case}-clean", "clean",
        lambda _: cross_entropy(bench.network.train, mutable=True), {"none": jnp.zeros(1)},
        epochs, seeds, keep=True,
    )  # fmt: skip


def _swept(
    bench: Bench,
    file: str,
    name: str,
    loss: Any,
    spec: Any,
    epochs: int,
    seeds: int,
    **options: Any,
) -> SweepResult:
    rate, on_cpu = bench.settings.learning_rate, jax.default_backend() == "cpu"
    return sweep(
        bench.key, loss, bench.network.init, bench.images.train, spec,
        optimizer=cosine_adam(rate, bench.steps(epochs)), epochs=epochs,
        batch_size=bench.settings.batch_size, seeds=seeds,
        chunk=CHUNKS[bench.case.network] if on_cpu else ACCELERATOR_CHUNK,
        checkpoint=bench.folder / file, identity={"sweep": name, "learning_rate": rate}, **options,
    )  # fmt: skip


def specs(plan: Sweep, network: Network) -> tuple[Any, list[Row]]:
    """The noise of every setting as one pytree, and what a row says of it."""
    add, mul = _levels(plan)
    if plan.where == "layers":
        model = Additive if plan.kind == "add" else Multiplicative
        spec, places = walking_noise(network.slots, plan.levels, model)
        return spec, [{"site": site, "level": float(level)} for site, level in places]
    label = [
        {"site": plan.where, "level": float(a if plan.kind == "add" else m), "add": a, "mul": m}
        for a, m in zip(add.tolist(), mul.tolist(), strict=True)
    ]
    if plan.kind == "add":
        noise: Any = Additive(add)
    elif plan.kind == "mul":
        noise = Multiplicative(mul)
    else:
        noise = Mixed(add, mul, order=plan.kind)
    return {"*" if plan.where == "global" else plan.where: noise}, label


def accuracies(
    key: jax.Array, network: Network, params: Any, state: Any, specs: Any, test: Any
) -> jax.Array:
    """Accuracy at every level of a spec, of one draw of the noise, `[levels]`."""
    return noisy_accuracy(key, network.evaluate, params, test, specs, repeats=1, state=state)[0]


def _weights_before(
    site: str, network: Network, scores: Any, seed: int, setting: int
) -> float | None:
    """Weight rms of the layer whose result reaches a slot; of all layers for global noise.

    All layers together are a geometric mean. None where there is none, or it isn't finite.
    """
    layers = [slot for slot in network.slots if f"weight_rms/{slot}" in scores]
    if site in network.slots:
        before = network.slots[: network.slots.index(site) + 1]
        layers = [slot for slot in layers if slot in before][-1:]
    values = [float(scores[f"weight_rms/{layer}"][seed, setting]) for layer in layers]
    return float(np.exp(np.mean(np.log(values)))) if values and np.isfinite(values).all() else None


def _levels(plan: Sweep) -> tuple[jax.Array, jax.Array]:
    levels = jnp.asarray(plan.levels, jnp.float32)
    if levels.ndim == 2:
        return levels[:, 0], levels[:, 1]
    none = jnp.zeros_like(levels)
    return (levels, none) if plan.kind == "add" else (none, levels)
