"""Draws the noise of all sites before the first layer runs, as one array."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff.noise.models import Draw, DrawnNoise, Noise, drawn_together, fits, is_counted, place
from jaxeff.program import Layer, Program, site_keys

Ahead = dict[tuple[Layer, int], list[Array]]
"""Numbers by layer and number of its value."""


def draw_ahead(
    key: PRNGKeyArray, program: Program, perturbed: Mapping[Layer, tuple[Noise, list[int]]]
) -> Ahead:
    """Draws what models state for the layers of a program; bodies of loops draw in each step.

    Args:
        key: The transform's key.
        program: The program.
        perturbed: Model and numbers of perturbed values, by layer.
    """
    if not is_counted(key):
        return {}
    wanted: list[tuple[Layer, int, list[Draw]]] = []
    for layer, (model, numbers) in perturbed.items():
        if not isinstance(model, DrawnNoise):
            continue
        described = layer.outputs if place(model) == "output" else layer.inputs
        for i in numbers:
            aval = described[i].aval
            if jnp.issubdtype(aval.dtype, jnp.floating):
                draws = list(model.draws(jax.ShapeDtypeStruct(aval.shape, aval.dtype)))
                if all(map(fits, draws)):
                    wanted.append((layer, i, draws))
    found: Ahead = {}
    # By the number of a model's draws: keys of one kind are derived together too.
    for count in {len(draws) for _, _, draws in wanted}:
        some = [one for one in wanted if len(one[2]) == count]
        keys = jax.vmap(jax.random.fold_in)(
            site_keys(key, [layer for layer, _, _ in some]),
            np.array([i for _, i, _ in some], np.uint32),
        )
        if count > 1:
            keys = jax.vmap(functools.partial(jax.random.split, num=count))(keys)
            keys = keys.reshape(-1, *key.shape)
        drawn = iter(drawn_together([draw for one in some for draw in one[2]], keys))
        for layer, i, draws in some:
            found[layer, i] = [next(drawn) for _ in draws]
    return found
