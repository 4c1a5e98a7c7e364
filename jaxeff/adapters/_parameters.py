"""The parameters of adapters: how they start, and how they go into those of the model."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxeff.adapters._lora import AdaptedLayer, LoRA, adapted, check_adapters
from jaxeff.compression.post_training import multiplications
from jaxeff.core import check_params, validate
from jaxeff.program import Program, check_settings, trace

Adapters = dict[str, dict[str, Array]]
"""By parameter the factors `a` and `b` of its update."""


@validate()
def init_lora(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    spec: Mapping[str, LoRA | None],
    params: Any,
    *args: Any,
) -> Adapters:
    """Starts adapters at an update of zero: `a` normal of variance one over the inputs, `b` zero.

    Args:
        key: Random key; a parameter's adapter doesn't depend on which others there are.
        f: A pure function `f(params, *args)`.
        spec: Settings by pattern of sites, as for `lora`.
        params: The parameters of `f`.
        *args: Inputs; only shapes and dtypes play a part.

    Returns:
        By the path of each adapted parameter its factors, `{"a": [groups, inputs, rank], "b":
        [groups, rank, outputs]}`.

    Raises:
        ValueError: As for `lora`.
    """
    check_settings(spec, LoRA, "an adapter, such as LoRA(8)")
    check_params("params", params)
    made: Adapters = {}
    for each in adapted(spec, trace(f, params, *args)).values():
        groups, inputs, outputs = each.contraction.matrix_shape
        dtype, rank = each.layer.outputs[0].aval.dtype, each.setting.rank
        own = jax.random.fold_in(key, zlib.crc32(each.path.encode()))
        a = jax.random.normal(own, (groups, inputs, rank), dtype) / inputs**0.5
        made[each.path] = {"a": a, "b": jnp.zeros((groups, rank, outputs), dtype)}
    return made


@validate()
def merge_lora(
    f: Callable[..., Any],
    spec: Mapping[str, LoRA | None],
    params: Any,
    adapters: Mapping[str, Mapping[str, Array]],
    *args: Any,
) -> Any:
    """Adds updates to the parameters: `f` of the result is `lora(f, spec)` with the adapters.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Settings by pattern of sites, as for `lora`.
        params: The parameters of `f`.
        adapters: Their adapters.
        *args: Inputs; only shapes and dtypes play a part.

    Returns:
        Parameters of the structure of `params`.

    Raises:
        ValueError: A weight is no parameter as it is (it is rounded, or a product of two), or
            another layer without an adapter reads the parameter, too.
    """
    check_settings(spec, LoRA, "an adapter, such as LoRA(8)")
    check_params("params", params)
    program = trace(f, params, *args)
    found = adapted(spec, program)
    check_adapters(adapters, found)
    by_site, refused = multiplications(program)
    leaves, structure = jax.tree.flatten(params)
    for path, site in {each.path: site for site, each in found.items()}.items():
        if site not in by_site:
            raise ValueError(
                f"merge_lora: {site!r} can't be merged: {refused.get(site, 'no weight')}"
            )
        _check_readers(program, path, found)
        origin, factors = by_site[site].origin, adapters[path]
        update = found[site].setting.scale * (factors["a"] @ factors["b"])
        whole = by_site[site].contraction.weight(update)
        leaf = jnp.asarray(leaves[origin.leaf])
        moved = origin.to_leaf(whole.astype(origin.target.aval.dtype), leaf)
        leaves[origin.leaf] = leaf + moved.astype(leaf.dtype)
    return jax.tree.unflatten(structure, leaves)


def _check_readers(program: Program, path: str, found: Mapping[str, AdaptedLayer]) -> None:
    others = [
        layer.site
        for layer in program.sites
        if layer.site not in found and any(v.is_weight and path in v.leaves for v in layer.inputs)
    ]
    if others:
        raise ValueError(
            f"merge_lora: {', '.join(others)} reads {path}, too, and has no adapter: merging would "
            "change it; give it one, or keep the adapters apart"
        )
