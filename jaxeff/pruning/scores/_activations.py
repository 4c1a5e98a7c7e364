"""Scores of channels by a batch: what the next layers lose, and how much channels differ.

Host code, one program for the whole network: values are concrete. Layers in loops aren't read.

Sharp edges:
    Scores are ranks: between groups they say nothing of size.
    A channel that no layer outside loops reads through a parameter has no `reconstruction`.

Sources: Luo et al., "ThiNet", arXiv:1707.06342. Mariet and Sra, "Diversity Networks",
arXiv:1511.05077, section 2.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.compression import post_training
from jaxeff.compression.post_training import Multiplication, multiplications
from jaxeff.core import check_number
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.pruning import dependencies
from jaxeff.pruning._plan import Plan
from jaxeff.pruning.dependencies import dimensions
from jaxeff.pruning.scores._weights import Score


class LinearStatistics(NamedTuple):
    """A linear layer on a batch.

    Attributes:
        at: The layer.
        weights: The matrices, `[groups, inputs, outputs]` in float64.
        moment: The mean of x x^T over rows, `[groups, inputs, inputs]` in float64.
        channels: The groups of the network at this batch.
    """

    at: Multiplication
    weights: np.ndarray
    moment: np.ndarray
    channels: dependencies.Channels

    def channel_of(self, dimension: dependencies.Dimension) -> np.ndarray:
        """Returns which channel of a dimension each input reads, or -1: `[groups, inputs]`."""
        axes = self.channels.labels.of(self.at.layer.inputs[self.at.index])
        channel = np.full(self.at.contraction.weight_shape, -1)
        for i, axis in enumerate(axes):
            if i in self.summed:
                shape = [-1 if j == i else 1 for j in range(len(axes))]
                channel = np.maximum(
                    channel, dependencies.membership(axis, dimension).reshape(shape)
                )
        matrix: np.ndarray = self.at.contraction.matrix(channel)[:, :, 0]
        return matrix

    @property
    def summed(self) -> frozenset[int]:
        """The axes of the weight that are summed over."""
        # One number per input, in the place of the weight: what varies along an axis is an input.
        rows = np.arange(self.at.contraction.matrix_shape[1])[None, :, None]
        marks = self.at.contraction.weight(np.broadcast_to(rows, self.at.contraction.matrix_shape))
        varies = [np.ptp(marks, axis=i).any() for i in range(marks.ndim)]
        return frozenset(np.flatnonzero(varies).tolist())

    @property
    def dimensions(self) -> set[dependencies.Dimension]:
        """The dimensions that it reads."""
        axes = self.channels.labels.of(self.at.layer.inputs[self.at.index])
        return {d for i in self.summed for d in dimensions(axes[i])}


def products(f: Callable[..., Any], params: Any, batch: Any, where: str) -> list[LinearStatistics]:
    """Returns the linear layers of a network with the second moments of what they read.

    `where` is the name of the caller in error messages.

    Raises:
        ValueError: The batch is empty or not finite.
    """
    args = post_training.arguments(where, batch)
    program = trace(f, params, *args)
    channels = dependencies.read_channels(program)
    at_site, _ = multiplications(program)

    def seen(layer: Layer, values: Sequence[Any], outputs: Sequence[Any]) -> Any:
        del outputs
        at = at_site.get(layer.site)
        return None if at is None else (values[at.index], at.reads(values))

    read = _evaluated(channels, (params, *args), seen)
    result = []
    for site, (w, x) in read.items():
        matrix = at_site[site].contraction.matrix(np.asarray(w)).astype(np.float64)
        # All that a score needs of the batch is the second moment: memory grows with inputs, not
        # rows.
        moment = np.asarray(at_site[site].moment(x, x), np.float64)
        result.append(LinearStatistics(at_site[site], matrix, moment, channels))
    return result


def activations(
    f: Callable[..., Any], params: Any, batch: Any, where: str
) -> dict[str, np.ndarray]:
    """Returns the activations of channels on a batch, where linear layers make them.

    Returns:
        By group, `[channels, values]` in float64: of all examples, places and layers that make the
        group. Groups that are made in loops alone are left out.

    Raises:
        ValueError: As for `products`.
    """
    args = post_training.arguments(where, batch)
    program = trace(f, params, *args)
    channels = dependencies.read_channels(program)

    def seen(layer: Layer, values: Sequence[Any], outputs: Sequence[Any]) -> Any:
        del values
        return outputs[0] if layer.kind == "linear" and layer.site else None

    read = _evaluated(channels, (params, *args), seen)
    layers = {layer.site: layer for layer in program.layers}
    of_group = {}
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        parts = []
        for site in group.sites:
            axes = channels.labels.of(layers[site].outputs[0]) if site in read else ()
            for i, axis in enumerate(axes):
                index = dependencies.membership(axis, dimension)
                if (index >= 0).any():
                    # Channels in order, every one with equally many indices (as in `vectors`); the
                    # first sorted are -1, no channel of this group.
                    order = np.argsort(index, kind="stable")[(index < 0).sum() :]
                    values = np.moveaxis(np.asarray(read[site], np.float64), i, 0)[order]
                    parts.append(values.reshape(group.size, -1))
        if parts:
            of_group[group.name] = np.concatenate(parts, axis=1)
    return of_group


def _evaluated(
    channels: dependencies.Channels,
    args: tuple[Any, ...],
    seen: Callable[[Layer, Sequence[Any], Sequence[Any]], Any],
) -> dict[str, Any]:
    """Returns what is seen of the layers outside loops, by site, in one compiled program."""
    program = channels.program
    outside = set(program.layers)

    @jax.jit
    def run(leaves: list[Any]) -> dict[str, Any]:
        values_of: dict[str, Any] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            outputs = plain_rule(layer, key, *values)
            of_layer = seen(layer, values, outputs) if layer in outside else None
            if of_layer is not None:
                values_of[layer.site] = of_layer
            return outputs

        evaluate(program, rule, None, leaves)
        return values_of

    read: dict[str, Any] = run([jnp.asarray(leaf) for leaf in jax.tree.leaves(args)])
    return read


def readers(
    statistics: Sequence[LinearStatistics],
) -> Iterator[tuple[str, dependencies.Dimension, list[LinearStatistics]]]:
    """Yields the groups of a network, each with the products that read it."""
    if not statistics:
        return
    channels = statistics[0].channels
    reads = [product.dimensions for product in statistics]
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        yield (
            group.name,
            dimension,
            [product for product, ds in zip(statistics, reads, strict=True) if dimension in ds],
        )


DAMPING = 1e-6
"""Added to the diagonal of H, in units of its mean, so that channels that are equal can be told."""


def reconstruction(f: Callable[..., Any], batch: Any, *, corrected: bool = False) -> Score:
    """Scores channels by ThiNet's greedy order of removal, the last the most important.

    `reconstruction` is ThiNet's greedy choice by what the next layers lose. A layer that reads
    channels sums what they contribute, Y = sum_c X_c W_c. Removing a set T changes it by E_T =
    sum_(c in T) X_c W_c, so that over a batch

    ```text
    |E_T|^2 = sum_(c, d in T) G_cd,    G_cd = sum_ij H_ij (W W^T)_ij,    i of channel c, j of d
    ```

    with H = X^T X: one matrix of channels by channels holds every set's error. Channels are removed
    one by one, each time the one that adds least (Luo et al., eq. 6 and algorithm 1); the score is
    the order. All places and outputs count here, where the paper samples some; layers that read the
    same channels add up, each as a share of its own |Y|^2.

    With `corrected`, a set's error is what least squares leaves when the weights of the others may
    make up for it. Removing channel c from those left then adds tr(W_c^T ((H^-1)_cc)^-1 W_c), the
    optimal brain surgeon's of a block, with H and W those of what is left.

    Args:
        f: A pure function `f(params, *args)`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        corrected: Whether the weights that are left may make up for a removal, as
            `corrected_weights` has them do.

    Raises:
        ValueError: When called: the batch is empty or not finite.
    """

    def score(params: Any, channels: dependencies.Channels) -> dict[str, np.ndarray]:
        del channels
        statistics = products(f, params, batch, "reconstruction")
        orders = {}
        for name, dimension, reading in readers(statistics):
            if reading and not dependencies.is_held(dimension):
                removal = _removed_with_correction if corrected else _removed
                order = removal(reading, dimension)
                orders[name] = np.argsort(order).astype(np.float64) / len(order)
        return orders

    return score


def gram(product: LinearStatistics, dimension: dependencies.Dimension) -> np.ndarray:
    """Computes G, the overlap of channels' contributions to a layer's result, `[c, c]`."""
    index = product.channel_of(dimension)
    total = np.zeros((dimension.size, dimension.size))
    for h, w, channel in zip(product.moment, product.weights, index, strict=True):
        inside = channel >= 0
        # Elementwise: (H * W W^T)_ij sums, over outputs, the products of contributions of
        # inputs i and j.
        overlap = h * (w @ w.T)
        np.add.at(total, np.ix_(channel[inside], channel[inside]), overlap[np.ix_(inside, inside)])
    return total


def corrected_weights(f: Callable[..., Any], params: Any, batch: Any, plan: Plan) -> Any:
    """Refits layers, by least squares, to make up for the channels that they lose.

    `corrected_weights` solves that least squares for a plan: the paper's eq. 7 scales whole
    channels, this gives every weight that reads them its best value.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        plan: Channels that stay.

    Returns:
        Parameters of the same shapes; what reads removed channels is zero there. Shrink them with
        the plan. Every layer is fitted to what the whole network gives it.

    Raises:
        ValueError: The batch is empty or not finite, or two layers read one weight.
        PlanError: The plan can't be carried out.
    """
    # A group that keeps everything needs no fit.
    gone = {name: keep for name, keep in plan.keep.items() if not np.all(keep)}
    plan.concrete()
    leaves = jax.tree.leaves(params)
    solved: dict[int, str] = {}
    for product in products(f, params, batch, "corrected_weights"):
        names = {
            g.name: d for g, d in zip(product.channels, product.channels.dimensions, strict=True)
        }
        keep = {names[name]: np.asarray(where) for name, where in gone.items()}
        if not product.dimensions & keep.keys():
            continue
        at = product.at
        if at.origin.leaf in solved:
            raise ValueError(
                f"corrected_weights: {at.layer.site!r} and {solved[at.origin.leaf]!r} read one "
                f"weight, {at.origin.path!r}, which can't be fitted to both; retrain instead."
            )
        solved[at.origin.leaf] = at.layer.site
        axes = product.channels.labels.of(at.layer.inputs[at.index])
        # An entry stays if all of the indices that it is summed over do; the result's own
        # channels keep their rows, which shrinking removes.
        stays = np.ones(at.contraction.weight_shape, bool)
        for i in product.summed:
            shape = [-1 if j == i else 1 for j in range(len(axes))]
            stays = stays & dependencies.kept(axes[i], keep).reshape(shape)
        new = np.zeros_like(product.weights)
        rows = at.contraction.matrix(stays)[:, :, 0]
        for g, (h, w, row) in enumerate(zip(product.moment, product.weights, rows, strict=True)):
            # Normal equations: H_SS W' = H_S: W, with S the inputs that stay.
            left = _damped(h)
            new[g][row] = np.linalg.solve(left[np.ix_(row, row)], left[row] @ w)
        leaf = at.origin.leaf
        value = jnp.asarray(at.contraction.weight(new), leaves[leaf].dtype)
        leaves[leaf] = at.origin.to_leaf(value, leaves[leaf])
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _removed(reading: Sequence[LinearStatistics], dimension: dependencies.Dimension) -> list[int]:
    """Orders channels by removal, without correction."""
    overlap = np.zeros((dimension.size, dimension.size))
    for product in reading:
        overlap += _share(product) * gram(product, dimension)
    # |E_T + E_c|^2 - |E_T|^2 = G_cc + 2 sum_(d in T) G_cd: kept up to date in O(n) a step.
    added = np.diag(overlap).copy()
    order: list[int] = []
    for _ in range(dimension.size):
        added[order] = np.inf
        order.append(int(np.argmin(added)))
        added = added + 2 * overlap[order[-1]]
    return order


def _removed_with_correction(
    reading: Sequence[LinearStatistics], dimension: dependencies.Dimension
) -> list[int]:
    """Orders channels by removal, where the remaining weights make up for it."""
    states = [
        (_share(product), channel, np.linalg.inv(_damped(h)), w.copy())
        for product in reading
        for h, w, channel in zip(
            product.moment, product.weights, product.channel_of(dimension), strict=True
        )
    ]
    left, order = list(range(dimension.size)), []
    while left:
        # The cost of a block: tr(W_c^T ((H^-1)_cc)^-1 W_c), summed over the layers that read it.
        errors = [sum(s * _block(c, *state) for s, *state in states) for c in left]
        order.append(left.pop(int(np.argmin(errors))))
        for _, channel, inverse, w in states:
            inside = channel == order[-1]
            if inside.any():
                # Block elimination: weights that stay take over what they can, and H^-1 becomes the
                # inverse of H without the block, in O(n^2) rather than by a new inversion.
                gain = inverse[:, inside] @ np.linalg.inv(inverse[np.ix_(inside, inside)])
                w -= gain @ w[inside]
                inverse -= gain @ inverse[inside]
                # Of a removed input nothing is left to be removed again.
                w[inside], inverse[inside], inverse[:, inside] = 0, 0, 0
    return order


def _block(c: int, channel: np.ndarray, inverse: np.ndarray, w: np.ndarray) -> float:
    inside = channel == c
    if not inside.any():
        return 0.0
    rows = w[inside]
    return float(np.sum(rows * np.linalg.solve(inverse[np.ix_(inside, inside)], rows)))


def _share(product: LinearStatistics) -> float:
    """Computes 1 / |Y|^2, or zero where the layer's result is zero."""
    size = sum(
        float(np.sum(h * (w @ w.T))) for h, w in zip(product.moment, product.weights, strict=True)
    )
    return 1 / size if size > 0 else 0.0


def _damped(h: np.ndarray) -> np.ndarray:
    mean = np.diag(h).mean()
    return h + np.eye(len(h)) * (DAMPING * mean if mean > 0 else 1.0)


def determinantal(
    f: Callable[..., Any],
    batch: Any,
    *,
    key: PRNGKeyArray | None = None,
    beta: float | None = None,
    epsilon: float = 0.01,
) -> Score:
    """Returns the order in which a determinantal point process takes channels.

    `determinantal` is a score by diversity: channels that a determinantal point process prefers
    together (DIVNET). With a kernel K of similarities between channels, a set S has probability in
    proportion to det(K_S): large where its channels differ. Mariet and Sra take

    ```text
    K_cd = exp(-beta |a_c - a_d|^2) + epsilon [c = d]
    ```

    of activations a over a batch, with beta = 10 over their number. The score is the order of a
    choice, the first the highest. Greedily (Chen et al., arXiv:1709.05135), the channel is next
    that multiplies the determinant most, by its variance given those chosen. With a key it is drawn
    in proportion to that variance: a sample of the process where K is a projection, and a close one
    otherwise (randomly pivoted Cholesky, Chen et al., arXiv:2207.06503).

    Args:
        f: A pure function `f(params, *args)`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        key: Draws the order; without one it is greedy.
        beta: Rate at which similarity falls with distance. Without it 10 over the number of a
            channel's activations, for activations of unit variance.
        epsilon: Added to the diagonal: a channel is never quite another.

    Raises:
        ValueError: `beta` or `epsilon` isn't positive; when called: the batch is empty or not
            finite.
    """
    check_number("determinantal: epsilon", epsilon, above=0)
    if beta is not None:
        check_number("determinantal: beta", beta, above=0)

    def score(params: Any, channels: dependencies.Channels) -> dict[str, np.ndarray]:
        del channels
        orders = {}
        for name, rows in activations(f, params, batch, "determinantal").items():
            # The paper's beta is for activations of unit variance: distances are divided by
            # the variance.
            spread = rows.std() or 1.0
            scale = 10 / (rows.shape[1] * spread**2) if beta is None else beta
            kernel = similarity(rows, scale) + epsilon * np.eye(len(rows))
            # By name, not by position: a group's draw doesn't depend on which others there are.
            group_key = None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))
            order = chosen(kernel, group_key)
            orders[name] = 1 - np.argsort(order).astype(np.float64) / len(order)
        return orders

    return score


def similarity(rows: np.ndarray, beta: float) -> np.ndarray:
    """Computes exp(-beta |a_c - a_d|^2), `[channels, channels]`."""
    distances = np.stack([np.square(rows - row).sum(1) for row in rows])
    kernel: np.ndarray = np.exp(-beta * distances)
    return kernel


def chosen(kernel: np.ndarray, key: PRNGKeyArray | None = None) -> list[int]:
    """Orders channels by choice, with a Cholesky factorization that grows with it.

    Similarities are positive semi-definite. Without a key the order is greedy. Returns all
    channels; those that the others determine come last, by number.
    """
    n = len(kernel)
    # `left` is the Schur complement's diagonal: each channel's variance given those chosen.
    # Incremental Cholesky makes each step O(n k), O(n^3) for all.
    left = np.diag(kernel).astype(np.float64).copy()
    least = 1e-10 * max(float(left.max()), 0.0)
    draws = np.zeros(n) if key is None else np.asarray(jax.random.uniform(key, (n,)), np.float64)
    factor = np.zeros((n, n))
    order: list[int] = []
    for k in range(n):
        if left.max() <= least:
            break
        # Rounding may leave small negative variances: they get probability zero.
        share = np.cumsum(np.maximum(left, 0))
        at = int(np.argmax(left))
        if key is not None:
            at = int(np.searchsorted(share, draws[k] * share[-1], side="right"))
        # One column of the Cholesky factor with row `at` as pivot; then left_i = K_ii -
        # |L_i|^2.
        factor[:, k] = (kernel[:, at] - factor[:, :k] @ factor[at, :k]) / np.sqrt(left[at])
        left = left - factor[:, k] ** 2
        order.append(at)
        left[order] = 0
    return order + [i for i in range(n) if i not in order]
