"""The moment pass against 30 weight samples, every contestant in the same rounds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.timing import interleaved
from experiments.transforms.cost import Subject, moments_by_hand, posterior
from jaxeff.bayes import draw, sample
from jaxeff.moment_propagation import moments

SAMPLES = 30
FRESH = ("draw_map", "draw_vmap")
DRAWN = ("drawn_map", "drawn_vmap", "drawn_unrolled")


def contestants(net: Subject) -> dict[str, Callable[[], Any]]:
    """Jitted calls by name: the moment pass, and 30 samples in several forms.

    `draw_*` draw their weights on every call, as probabilistic libraries do; `drawn_*` are handed
    weights that were drawn before, which no prediction of fresh uncertainty can beat by sampling.
    `*_map` runs the samples one after the other, `*_vmap` together, `*_unrolled` as one program of
    30 networks.
    """
    f, x, belief = net.f, net.x, posterior(net.params)
    key = jax.random.key(3)
    weights = sample(key, belief, SAMPLES)
    separate = [jax.tree.map(lambda w, i=i: w[i], weights) for i in range(SAMPLES)]
    point, propagate = jax.jit(f), jax.jit(moments(f, shared=False))
    by_hand = jax.jit(moments_by_hand(net))

    @jax.jit
    def draw_map(key: Any, belief: Any, x: Any) -> Any:
        keys = jax.random.split(key, SAMPLES)
        return jax.lax.map(lambda k: f(draw(k, belief), x), keys)

    @jax.jit
    def draw_vmap(key: Any, belief: Any, x: Any) -> Any:
        keys = jax.random.split(key, SAMPLES)
        return jax.vmap(lambda k: f(draw(k, belief), x))(keys)

    drawn_map = jax.jit(lambda weights, x: jax.lax.map(lambda w: f(w, x), weights))
    drawn_vmap = jax.jit(jax.vmap(f, in_axes=(0, None)))
    drawn_unrolled = jax.jit(lambda separate, x: jnp.stack([f(w, x) for w in separate]))
    return {
        "deterministic": lambda: point(net.params, x),
        "moments": lambda: propagate(belief, x),
        "moments_by_hand": lambda: by_hand(belief, x),
        "draw_map": lambda: draw_map(key, belief, x),
        "draw_vmap": lambda: draw_vmap(key, belief, x),
        "drawn_map": lambda: drawn_map(weights, x),
        "drawn_vmap": lambda: drawn_vmap(weights, x),
        "drawn_unrolled": lambda: drawn_unrolled(separate, x),
    }


def measure(net: Subject, rounds: int) -> list[dict[str, Any]]:
    """One row per contestant: milliseconds per call, and over the moment pass of the same round."""
    timings = interleaved(contestants(net), rounds, relative_to="moments")
    return [
        {
            "net": net.name, "batch": len(net.x), "method": name, "ms": timing["ms"],
            "spread_ms": timing["spread"], "times_moments": timing["ratio"],
        }
        for name, timing in timings.items()
    ]  # fmt: skip
