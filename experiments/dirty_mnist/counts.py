"""How the figures of a sampled network depend on the number of samples."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float

from experiments.dirty_mnist.evaluation import figures
from experiments.dirty_mnist.recipe import Sets
from jaxeff.uncertainty import Decomposition

COUNTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)


def over_samples(
    logits: dict[str, Float[Array, "samples n classes"]], sets: Sets
) -> list[dict[str, Any]]:
    """Figures from the first n samples, for several n: one record each."""
    available = len(logits["clean"])
    counts = [n for n in COUNTS if n <= available]
    running = {domain: _running(values, jnp.asarray(counts)) for domain, values in logits.items()}
    rows = []
    for i, n in enumerate(counts):
        uncertainty = {d: jax.tree.map(lambda a: a[i], u) for d, (u, _) in running.items()}  # noqa: B023
        log_probs = {d: p[i] for d, (_, p) in running.items()}
        total = {f"total_{d}": float(u.total.mean()) for d, u in uncertainty.items()}
        rows.append({"samples": n, **figures(uncertainty, log_probs, sets), **total})
    return rows


@jax.jit
def _running(
    logits: Float[Array, "samples n classes"], counts: Array
) -> tuple[Decomposition, Float[Array, "counts n classes"]]:
    """Uncertainty and log-probabilities of the mean over the first samples, in one scan."""
    shape = logits.shape[1:]

    def add(carry: tuple[Array, Array], sample: Array) -> tuple[tuple[Array, Array], Any]:
        probs = jax.nn.softmax(sample)
        carry = (carry[0] + probs, carry[1] + entr(probs).sum(-1))
        return carry, carry

    start = (jnp.zeros(shape), jnp.zeros(shape[:-1]))
    _, (probs, entropies) = jax.lax.scan(add, start, logits)
    mean = probs[counts - 1] / counts[:, None, None]
    aleatoric = entropies[counts - 1] / counts[:, None]
    total = entr(mean).sum(-1)
    uncertainty = Decomposition(total, aleatoric, jnp.maximum(total - aleatoric, 0))
    return uncertainty, jnp.log(jnp.maximum(mean, jnp.finfo(mean.dtype).tiny))
