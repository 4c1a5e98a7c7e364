"""Score by a normalization's scale: what network slimming makes small goes first.

Trained with an l1 penalty on the scales (`jaxeff.pruning.slimming`), many are near zero; the score
is their magnitude, summed where several normalizations scale one channel.

Which parameters are scales is read from the program: those of one axis that multiply, and end in a
layer of kind normalization. Groups without one have no score.

Source: Liu et al., "Learning Efficient Convolutional Networks through Network Slimming",
arXiv:1708.06519.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxeff.program import Program
from jaxeff.program.ir import Role
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import Channels, leaf_path, membership


def batch_norm_scale(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the magnitudes of the scales of normalizations; groups without any are left out."""
    paths = scales(channels.program)
    found = {
        channels.find(leaf_path(keypath)): np.abs(np.asarray(leaf, np.float64))
        for keypath, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    scores = {}
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        members = [m for m in group.members if m.path in paths and m.path in found]
        total = np.zeros(group.size)
        for member in members:
            index = membership(channels.leaves[member.path][member.axis], dimension)
            along = np.broadcast_to(found[member.path].reshape(-1), index.shape)
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
