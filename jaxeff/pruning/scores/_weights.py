"""Scores of channels by their weights: magnitude, median, posterior, scales, and what a loss loses.

A score of a channel sums scores of the parameters that make it. A kernel of shape [in, heads,
width] makes the channels of its last two axes, a transposed one those of its first; the program
says it, no convention does. A table that is looked up makes what it holds whole. Where an axis is
both (the kernel of a recurrent cell makes what it reads), the last one makes.

- `geometric_median`, `batch_norm_scale`: see there.
- `l1`, `l2`: magnitude. Li et al., "Pruning Filters for Efficient ConvNets", arXiv:1608.08710 (l1,
  of a channel's own filters); Galen takes the same (Klein's thesis, section 4.2.3).
- `signal_to_noise`: of weights under a posterior. Blundell et al., "Weight Uncertainty in Neural
  Networks", arXiv:1505.05424, section 5.1.
- `taylor`, `optimal_brain_damage`: what a loss loses. Removing weights w changes it by about -g.w +
  w.H.w / 2. The first term, squared and summed over a channel, is Molchanov et al.'s
  (arXiv:1906.10771, eq. 8, of the whole group); with the diagonal of the Hessian alone at a
  minimum, h w^2 / 2 is LeCun et al.'s (Optimal Brain Damage, 1990, eq. 5).
- `random`: what any other has to be better than (Klein's thesis, section 3.3.1).
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.core import kept_program, widened
from jaxeff.moment_propagation import is_gaussian
from jaxeff.program import Program
from jaxeff.program.ir import Contraction, Node, Role, Value
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import Axis, Channels, Dimension, dimensions, leaf_path, membership

Place = tuple[str, int]


def making(channels: Channels) -> frozenset[Place]:
    """Returns the leaves and axes that make channels, of parameters with more than one axis."""
    places: set[Place] = set()
    for leaves, makes, reads in _products(channels):
        for path in leaves:
            axes = channels.leaves.get(path, ())
            for i, axis in enumerate(axes if len(axes) > 1 else ()):
                inside = set(dimensions(axis))
                if inside & makes and (not inside & reads or i == len(axes) - 1):
                    places.add((path, i))
    return frozenset(places)


def _products(
    channels: Channels,
) -> Iterator[tuple[frozenset[str], set[Dimension], set[Dimension]]]:
    """Returns, for every product with a parameter, its leaves and what it makes and sums."""
    labels = channels.labels
    for layer in channels.program.walk():
        for node in layer.nodes if layer.kind != "control flow" else ():
            if node.primitive is prim.p.gather_p:
                sides = [0]
            elif node.primitive in prim.LINEAR:
                sides = [i for i, v in enumerate(node.inputs) if _is_weight(v)]
            else:
                continue
            for side in sides:
                operand = node.inputs[side]
                if _is_weight(operand):
                    assert isinstance(operand, Value)
                    makes, reads = _sorted(node, side, labels.of(operand))
                    yield operand.leaves, makes, reads


def _sorted(node: Node, side: int, axes: tuple[Axis, ...]) -> tuple[set[Dimension], set[Dimension]]:
    """Returns the dimensions of an operand that the result has, and those that are summed."""
    if node.primitive is prim.p.gather_p:
        summed = set(node.params["dimension_numbers"].start_index_map)
    else:
        contraction = Contraction.of(node)
        summed = {*contraction.summed(side), *(contraction.window(1) if side else ())}
    return (
        _of(axis for i, axis in enumerate(axes) if i not in summed),
        _of(axis for i, axis in enumerate(axes) if i in summed),
    )


def _of(axes: Iterable[Axis]) -> set[Dimension]:
    return {dimension for axis in axes for dimension in dimensions(axis)}


def _is_weight(value: object) -> bool:
    return isinstance(value, Value) and value.is_weight


Score = Callable[[Any, Channels], dict[str, np.ndarray]]
"""`score(params, channels)` gives one number per channel, by group; the higher the more it matters.

What a score needs besides (a loss, batches, a key, a posterior) it is made with: `taylor(loss,
batches)` is one. A group that it can say nothing about is left out.
"""


def summed(importance: Any, channels: Channels, *, outputs: bool = False) -> dict[str, np.ndarray]:
    """Sums a number per parameter over each channel.

    Args:
        importance: A tree of the parameters' shapes (and no other leaves that are theirs).
        channels: The groups.
        outputs: Whether only the weights count that make a channel (the columns of a kernel, as
            the thesis' l1 scores have it), and not those that read it, nor biases and scales.

    Returns:
        By group, a number per channel.

    Raises:
        ValueError: A parameter has no numbers, or some that aren't finite.
    """
    scores = {group.name: np.zeros(group.size) for group in channels}
    for name, values, axis, index in _members(importance, channels, outputs):
        along = values.sum(tuple(i for i in range(values.ndim) if i != axis))
        size = len(scores[name])
        scores[name] += np.bincount(index[index >= 0], along[index >= 0], size)
    return scores


def vectors(values: Any, channels: Channels, *, outputs: bool = False) -> dict[str, np.ndarray]:
    """Returns what a channel takes along, as a vector each.

    `values` has the parameters' shapes; `outputs` is as for `summed`. Returns `[channels, entries]`
    in float64 by group.

    Raises:
        ValueError: A parameter has no numbers, or some that aren't finite.
    """
    rows = {group.name: [np.zeros((group.size, 0))] for group in channels}
    for name, array, axis, index in _members(values, channels, outputs):
        order = np.argsort(index, kind="stable")[(index < 0).sum() :]
        # Every channel has equally many indices of the axis: one, or one of each block.
        part = np.moveaxis(array, axis, 0)[order]
        rows[name].append(part.reshape(len(rows[name][0]), -1))
    return {name: np.concatenate(parts, axis=1) for name, parts in rows.items()}


def _members(
    tree: Any, channels: Channels, outputs: bool
) -> Iterator[tuple[str, np.ndarray, int, np.ndarray]]:
    """Yields group, values, axis, and the channel of each index, or -1."""
    arrays = {}
    for keypath, leaf in jax.tree_util.tree_leaves_with_path(tree):
        path = channels.find(leaf_path(keypath))
        if path is not None:
            # In float64: sums over large layers lose digits in float32.
            arrays[path] = np.asarray(leaf, np.float64)
    makes = making(channels) if outputs else frozenset()
    weights = {v.path for v in channels.program.inputs if v.is_weight}
    checked = set()
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        for path, axis in ((m.path, m.axis) for m in group.members):
            if outputs and (path, axis) not in makes:
                continue
            if path not in arrays and path not in weights:
                continue  # a state, such as running statistics, in a tree of parameters
            if path not in arrays:
                raise ValueError(f"there are no numbers for the parameter {path!r}")
            if path not in checked and not np.isfinite(arrays[path]).all():
                raise ValueError(f"the scores of {path!r} aren't finite")
            checked.add(path)
            yield group.name, arrays[path], axis, membership(channels.leaves[path][axis], dimension)


def l1(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the sum of absolute weights that make a channel, of all layers that add to it."""
    # Without JAX, which would compile a function for each shape of parameters; so below.
    magnitudes = jax.tree.map(lambda w: np.abs(np.asarray(w)), params)
    return summed(magnitudes, channels, outputs=True)


def l2(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the root of the sum of squared weights."""
    squares = jax.tree.map(lambda w: np.square(np.asarray(widened(w))), params)
    sums = summed(squares, channels, outputs=True)
    return {name: np.sqrt(total) for name, total in sums.items()}


def geometric_median(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the summed distances between what makes a channel and what makes the others.

    Channels that others can stand in for go first. The sum of distances from a channel's weights to
    those of all others of its group, `s_c = sum_d |w_c - w_d|`, is least at the geometric median,
    whose information the others hold (He et al., "Filter Pruning via Geometric Median",
    arXiv:1811.00250, eqs. 4 to 7). A channel with small weights may well stay, unlike by `l1`.
    """
    rows_of = vectors(params, channels, outputs=True)
    return {name: _distances(rows).sum(1) for name, rows in rows_of.items()}


def _distances(rows: np.ndarray) -> np.ndarray:
    """Computes distances between rows, without the cancellation of |a|^2 - 2 ab + |b|^2."""
    return np.stack([np.sqrt(np.square(rows - row).sum(1)) for row in rows])


def signal_to_noise(posterior: Any) -> Score:
    """Returns the sum of mean^2 / variance over the weights that make a channel.

    Args:
        posterior: A pytree of `Gaussian`, as SVI returns it; other leaves count as certain, and
            nothing that they make is more important for it.
    """

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        del params
        ratio = jax.tree.map(
            lambda g: (
                np.square(g.mean) / np.maximum(g.var, jnp.finfo(g.var.dtype).tiny)
                if is_gaussian(g)
                else np.zeros_like(g)
            ),
            posterior,
            is_leaf=is_gaussian,
        )
        return summed(ratio, channels, outputs=True)

    return score


def batch_norm_scale(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the magnitudes of the scales of normalizations; groups without any are left out.

    Trained with an l1 penalty on the scales (`jaxeff.pruning.slimming`), many are near zero; the
    score is their magnitude, summed where several normalizations scale one channel. Which
    parameters are scales is read from the program: those of one axis that multiply, and end in a
    layer of kind normalization. Liu et al., "Learning Efficient Convolutional Networks through
    Network Slimming", arXiv:1708.06519.
    """
    paths = scales(channels.program)
    magnitudes = {
        channels.find(leaf_path(keypath)): np.abs(np.asarray(leaf, np.float64))
        for keypath, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    scores = {}
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        members = [m for m in group.members if m.path in paths and m.path in magnitudes]
        total = np.zeros(group.size)
        for member in members:
            index = membership(channels.leaves[member.path][member.axis], dimension)
            along = np.broadcast_to(magnitudes[member.path].reshape(-1), index.shape)
            total += np.bincount(index[index >= 0], along[index >= 0], group.size)
        if members:
            scores[group.name] = total
    return scores


def scales(program: Program) -> frozenset[str]:
    """Returns the paths of the parameters that scale the result of a normalization."""
    nodes = [n for layer in program.walk() for n in layer.nodes if layer.kind != "control flow"]
    # Of one leaf alone, so neither an inverse deviation nor its product with the scale.
    multiplied = {
        v.path
        for node in nodes
        if node.primitive is prim.p.mul_p
        for v in node.values
        if v.role == Role.PARAM and len(v.leaves) == 1 and sum(n > 1 for n in v.aval.shape) <= 1
    }
    # A scale multiplies and is inside of a normalization: gates do the first alone, biases the
    # second.
    normal: set[str] = set()
    for layer in program.walk():
        if layer.kind == "normalization":
            normal |= {path for v in layer.inputs for path in v.leaves}
    return frozenset(multiplied & normal)


def random(key: PRNGKeyArray) -> Score:
    """Returns a score that is uniform noise; a group's depends on the key and its name alone."""

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        del params
        return {
            group.name: np.asarray(
                jax.random.uniform(
                    jax.random.fold_in(key, zlib.crc32(group.name.encode())), (group.size,)
                )
            )
            for group in channels
        }

    return score


Loss = Callable[[Any, Any], Any]


def taylor(loss: Loss, batches: Iterable[Any]) -> Score:
    """Scores by first order: the squared change of each batch's loss, a mean over batches.

    Args:
        loss: `loss(params, batch)`, a scalar.
        batches: Batches of one shape.
    """
    batch_list = list(batches)
    _check(batch_list)

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        gradient = kept_program(jax.grad(loss))
        total: dict[str, np.ndarray] = {}
        for batch in batch_list:
            # Summed over a channel before it is squared: the change of the loss if all of it goes,
            # to first order.
            products = jax.tree.map(lambda w, g: w * g, params, gradient(params, batch))
            for name, change in summed(products, channels).items():
                total[name] = total.get(name, 0) + change**2 / len(batch_list)
        return total

    return score


def optimal_brain_damage(
    key: PRNGKeyArray, loss: Loss, batches: Iterable[Any], probes: int = 8
) -> Score:
    """Scores by second order, with the Hessian's diagonal by Hutchinson's probes.

    Args:
        key: Random key of the probes.
        loss: `loss(params, batch)`, a scalar.
        batches: Batches of one shape.
        probes: Random signs per batch; the estimate is unbiased, its error falls as 1/sqrt(probes).
    """
    batch_list = list(batches)
    _check(batch_list)

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        def probed(key: PRNGKeyArray, params: Any, batch: Any) -> Any:
            leaves, structure = jax.tree.flatten(params)
            keys = jax.random.split(key, len(leaves))
            signs = [
                jax.random.rademacher(k, w.shape, w.dtype)
                for k, w in zip(keys, leaves, strict=True)
            ]
            v = jax.tree.unflatten(structure, signs)
            # Hutchinson: E[v * (H v)] is the diagonal for random signs v. Forward over reverse, a
            # Hessian product costs a few gradients.
            _, product = jax.jvp(jax.grad(lambda p: loss(p, batch)), (params,), (v,))
            return jax.tree.map(jnp.multiply, v, product)

        def diagonal(key: PRNGKeyArray, params: Any, batch: Any) -> Any:
            each = jax.vmap(probed, (0, None, None))
            products = each(jax.random.split(key, probes), params, batch)
            return jax.tree.map(lambda h: h.mean(0), products)

        keys, program = jax.random.split(key, len(batch_list)), kept_program(diagonal)
        curvature = [program(k, params, batch) for k, batch in zip(keys, batch_list, strict=True)]
        mean = jax.tree.map(lambda *h: sum(h) / len(h), *curvature)
        # At a minimum no curvature is negative: such values come from the estimate, or from
        # training that stopped early.
        lost = jax.tree.map(lambda w, h: 0.5 * jnp.maximum(h, 0) * w * w, params, mean)
        return summed(lost, channels)

    return score


def _check(batches: list[Any]) -> None:
    if not batches:
        raise ValueError("a score by sensitivity needs at least one batch, but there is none")
