"""The curvature of a likelihood by the weights of a last layer: generalized Gauss-Newton.

With features `h` (1 for the bias appended) and logits `h @ W`, the negative log-likelihood's second
derivative by W is `h h^T` times that by the logits, `L`, without approximation; summed over
the examples as one of

```text
full      sum_n h h^T (x) L
outputs   sum_n h h^T L_cc, one matrix for each output
kron      A (x) B / N     A = sum_n h h^T, B = sum_n L
diag      sum_n h_d^2 L_cc
```

`jaxeff.bayes.curvature` has what follows from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.bayes.posteriors import Likelihood, resolve_likelihood

MOST = 16_384
"""Weights of a full curvature at most: a gibibyte of float32."""


def gaussian_information(outputs: Float[Array, "*batch two_k"]) -> Float[Array, "*batch two_k"]:
    """Computes the Fisher information of means and log-variances, which is diagonal: 1 / v, 1 / 2.

    The second derivative by a log-variance, half the squared residual over the variance, has this
    mean, but together with that by the mean it is indefinite at targets near or far.
    """
    _, log_var = jnp.split(outputs, 2, axis=-1)
    return jnp.concatenate([jnp.exp(-log_var), jnp.full_like(log_var, 0.5)], axis=-1)


def outputs_curvature(
    likelihood: Likelihood, outputs: Float[Array, "batch outputs"], targets: Any
) -> Float[Array, "batch outputs outputs"]:
    """Computes the curvature of the negative log-likelihood by an example's outputs.

    Of logits and Gaussians it is the Fisher information, of other likelihoods the second derivative
    at the targets.
    """
    eye = jnp.eye(outputs.shape[-1], dtype=outputs.dtype)
    if likelihood == "gaussian":
        return gaussian_information(outputs)[:, :, None] * eye[None]
    if likelihood == "categorical":
        probs = jax.nn.softmax(outputs)
        # For a softmax the outputs' Hessian is diag(p) - p p^T, without labels.
        return probs[:, :, None] * eye[None] - probs[:, :, None] * probs[:, None, :]
    distribution: Callable[[Any], Any] = resolve_likelihood(likelihood)

    def nll(out: Array, target: Any) -> Array:
        return -distribution(out[None]).log_prob(target[None]).sum()

    # No closed form for other likelihoods; outputs are few, so their Hessian is cheap.
    return jax.vmap(jax.hessian(nll))(outputs, targets)


def check_size(structure: str, features: int, outputs: int) -> None:
    """Refuses a full curvature that doesn't fit.

    Raises:
        ValueError: It has more than `MOST` weights.
    """
    size = features * outputs
    if structure == "full" and size > MOST:
        raise ValueError(
            f"laplace: a full curvature of {features} x {outputs} weights takes "
            f"{4 * size**2 / 2**30:.0f} GiB; choose 'kron', 'diag' or 'lowrank'"
        )


def batch_curvature(
    structure: str, features: Array, outputs: Array, targets: Any, likelihood: Likelihood
) -> tuple[Array, ...]:
    """Computes one batch's part of a curvature: what is summed over batches."""
    # Of the layer's inputs and outputs one matrix each; their Kronecker product stands for
    # the sum of products, which it equals only if the two are independent.
    if structure == "kron":
        return features.T @ features, _summed(likelihood, outputs, targets)
    if likelihood == "categorical":
        probs = jax.nn.softmax(outputs)
        # The diagonal of diag(p) - p p^T is p (1 - p): no example needs a matrix.
        if structure == "diag":
            return ((features**2).T @ (probs * (1 - probs)),)
        if structure == "outputs":
            return (_of_outputs(features, probs * (1 - probs)),)
        return (_full_categorical(features, probs),)
    each = outputs_curvature(likelihood, outputs, targets)
    if structure == "diag":
        return ((features**2).T @ jnp.diagonal(each, axis1=1, axis2=2),)
    if structure == "outputs":
        return (_of_outputs(features, jnp.diagonal(each, axis1=1, axis2=2)),)
    n = features.shape[1] * outputs.shape[1]
    # sum_n h h^T (x) L, in the order of the flattened weights: feature, then output.
    return (jnp.einsum("nd,ne,nck->dcek", features, features, each).reshape(n, n),)


def _summed(likelihood: Likelihood, outputs: Array, targets: Any) -> Array:
    if likelihood != "categorical":
        return outputs_curvature(likelihood, outputs, targets).sum(0)
    probs = jax.nn.softmax(outputs)  # never a matrix for each example: a thousand classes fit
    return jnp.diag(probs.sum(0)) - probs.T @ probs


def _of_outputs(features: Array, curvature: Array) -> Array:
    """Computes a matrix for each output, one after the other to save memory."""
    return jax.lax.map(lambda own: (features * own[:, None]).T @ features, curvature.T)


def _full_categorical(features: Array, probs: Array) -> Array:
    # diag(p) - p p^T splits the sum: a block-diagonal part per class and one matrix product
    # of [n, d c] rows, instead of n matrices of [c, c].
    (_, d), (n, c) = features.shape, probs.shape
    joint = (features[:, :, None] * probs[:, None, :]).reshape(n, d * c)
    own = jnp.einsum("nd,ne,nc->cde", features, features, probs)
    blocks = jnp.einsum("cde,ck->dcek", own, jnp.eye(c, dtype=probs.dtype))
    return blocks.reshape(d * c, d * c) - joint.T @ joint
