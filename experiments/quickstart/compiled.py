"""The same functions as compiled libraries, for this machine and an ARM Cortex-A72; latencies."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
from jaxeff_export import BoardError, ToolchainError, resolve_target
from jaxeff_export.boards import emulated
from jaxeff_export.targets import find_emulator, find_linker

import jaxeff
from experiments.harness import Run
from experiments.quickstart.models import Models, Outcome, record
from experiments.quickstart.recipe import Sets, Settings, split
from experiments.timing import interleaved
from jaxeff.bayes import draw, sample

ARM = "cortex-a72"


@dataclass(frozen=True)
class Libraries:
    """Compiled bundles by method and target, and the JAX functions they were made from."""

    # per method, the function `g(params, x)` and its parameters
    functions: dict[str, tuple[Any, Any]]
    bundles: dict[tuple[str, str], Any]  # per (method, target)


def compile_all(run: Run[Settings], sets: Sets, models: Models) -> Libraries:
    """Exports and compiles the three methods for every target."""
    settings = run.settings
    step = jax.jit(models.f)

    def svi30(weights: Any, x: Any) -> Any:
        draws = [jax.tree.map(lambda w, i=i: w[i], weights) for i in range(settings.samples)]
        return jnp.stack([step(w, x) for w in draws], axis=1)

    weights = sample(split(run.key, "samples"), models.posterior, settings.samples)
    functions: dict[str, tuple[Callable[..., Any], Any]] = {
        "deterministic": (models.f, models.params),
        "moments": (jaxeff.moments(models.f, method="diagonal"), models.posterior),
        "svi30": (svi30, weights),
    }
    x = sets.test_images[: settings.batch]
    bundles = {}
    for target in ("host", ARM) if settings.arm and _arm_tools(run) else ("host",):
        for method, (function, params) in functions.items():
            if target == ARM and method == "svi30":
                continue  # 30 times the deterministic net: emulating it shows nothing new
            bundles[method, target] = jaxeff_export.deploy(function, (params, x), target=target)
            run.say(f"compiled {method} for {target}")
    return Libraries(functions, bundles)


def compare(run: Run[Settings], sets: Sets, libraries: Libraries, outcome: Outcome) -> None:
    """Runs every library, compares it with JAX, and records its figures."""
    settings = run.settings
    for (method, target), bundle in libraries.bundles.items():
        function, params = libraries.functions[method]
        reference = jax.jit(function)
        name = f"{method}_tvm" if target == "host" else f"{method}_{target}"
        images = 10 if target == "host" else settings.emulated_batches
        batches = sets.test_images[: images * settings.batch]
        if target == "host":
            inside, outside = (
                _run(bundle.run, images, settings.batch)
                for images in (sets.test_images, sets.ood_images)
            )
            if method != "svi30":
                inside, outside = (_one_sample(out) for out in (inside, outside))
            record(outcome, name, run, sets, inside, outside)
            outputs = _run(bundle.run, batches, settings.batch)
        else:
            with bundle.on("emulated") as runner:
                outputs = _run(runner.run, batches, settings.batch)
            outcome.methods[name] = {}
        expected = _run(functools.partial(reference, params), batches, settings.batch)
        outcome.methods[name].update(_agreement(outputs, expected))
    run.say(f"{len(libraries.bundles)} libraries compared with JAX")


def _run(call: Any, images: Any, batch: int) -> Any:
    """Calls a function of fixed batch size on images; what doesn't fill a batch is padded."""
    parts = []
    for start in range(0, len(images), batch):
        part = np.asarray(images[start : start + batch])
        filled = np.zeros((batch, *part.shape[1:]), part.dtype)
        filled[: len(part)] = part
        keep = slice(len(part))
        parts.append(jax.tree.map(lambda a, keep=keep: np.asarray(a)[keep], call(filled)))
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)


def _one_sample(out: Any) -> Any:
    return out if isinstance(out, jaxeff.Gaussian) else out[:, None]


def _agreement(found: Any, expected: Any) -> dict[str, Any]:
    """Largest difference, absolute and relative to the largest entry of its array."""
    absolute, relative = 0.0, 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        error = float(jnp.abs(a - b).max())
        # Python's max would pass over NaN, and such a result agree.
        absolute = float(np.maximum(absolute, error))
        relative = float(np.maximum(relative, error / float(jnp.abs(b).max())))
    # A sum of n float32 terms rounds to about sqrt(n) eps; LeNet-5 sums at most 400, four times.
    bound = 4 * 400**0.5 * float(jnp.finfo(jnp.float32).eps)
    return {"max_abs_error": absolute, "max_rel_error": relative, "agrees": relative < bound}


def _arm_tools(run: Run[Settings]) -> bool:
    """Whether ARM libraries can be linked and run here; says what is missing if they can't."""
    try:
        find_linker(resolve_target(ARM))
        find_emulator()
        emulated.prepare(progress=run.say)
    except (ToolchainError, BoardError) as error:
        run.say(f"[bold red]no ARM part:[/] {error}")
        return False
    return True


def latencies(
    run: Run[Settings], sets: Sets, models: Models, libraries: Libraries
) -> dict[str, dict[str, float]]:
    """Milliseconds per batch, by method.

    `svi30` draws its weights on every call, as a probabilistic library does; `svi30_presampled` is
    the fastest form, with the weights drawn beforehand.
    """
    key, settings = run.key, run.settings
    x = sets.test_images[: settings.batch]
    f = models.f
    keys = jax.random.split(split(key, "samples"), settings.samples)
    weights = sample(split(key, "samples"), models.posterior, settings.samples)
    point, propagate = jax.jit(f), jax.jit(jaxeff.moments(f, method="diagonal"))
    fresh = jax.jit(
        lambda posterior, keys, x: jax.lax.map(lambda k: f(draw(k, posterior), x), keys)
    )
    drawn = jax.jit(lambda weights, x: jax.lax.map(lambda w: f(w, x), weights))
    calls: dict[str, Any] = {
        "deterministic": lambda: point(models.params, x),
        "moments": lambda: propagate(models.posterior, x),
        "svi30": lambda: fresh(models.posterior, keys, x),
        "svi30_presampled": lambda: drawn(weights, x),
    }
    timings = interleaved(calls)
    host = {m: b for (m, target), b in libraries.bundles.items() if target == "host"}
    rounds: dict[str, list[float]] = {m: [] for m in host}
    for _ in range(15):
        for method, bundle in host.items():
            rounds[method].append(bundle.benchmark("local", number=3, repeat=1).median_ms)
    for method, values in rounds.items():
        low, middle, high = jnp.quantile(jnp.array(values), jnp.array([0.25, 0.5, 0.75]))
        timings[f"{method}_tvm"] = {"ms": float(middle), "spread": float(high - low)}
    return timings
