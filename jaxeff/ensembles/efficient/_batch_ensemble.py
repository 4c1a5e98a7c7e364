"""`batch_ensemble`: members that differ by factors of rank one, at the memory of one network.

```python
import jax
import optax

from jaxeff.ensembles import Members, batch_ensemble, member_loss
from jaxeff.nn import small_classifier
from jaxeff.training import fit

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
g, members = batch_ensemble(key, f, params, {"*": Members(4)}, x)
result = fit(key, member_loss(g), members, (x, y), optimizer=optax.adam(1e-2), epochs=2,
             batch_size=32)
logits = g(result.params, x)                            # [members, batch, classes]
```

The kernel of a member is the shared one times a number for each of its inputs and one for each of
its outputs, `W * r s^T` (Wen et al. 2020, "BatchEnsemble", arXiv:2002.06715). The result is what
`ensemble` returns: the factors have members, everything else is shared.

Sharp edges:
    Inference costs as many networks as there are members: it is memory that is saved.
    Biases are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.core import check_function, check_key, check_params, input_batch, is_key, validate
from jaxeff.ensembles._ensemble import Ensemble, ensemble
from jaxeff.ensembles._members import Members
from jaxeff.program import check_settings, resolve, trace
from jaxeff.program.ir import Contraction
from jaxeff.program.reading import leaf_names

Axes = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of a kernel: its inputs, its outputs."""


@validate(x=input_batch)
def batch_ensemble(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    spec: Mapping[str, Members | None],
    x: Any,
) -> tuple[Ensemble, Any]:
    """Gives the kernels of chosen sites members that differ by factors.

    Args:
        key: Random key of the factors, which start as one or minus one.
        f: `f(params, x)`; a random key may come first.
        params: The parameters of `f`; all stay as they are.
        spec: Maps patterns of sites to `Members`, whose count is taken, or to None.
        x: Inputs; shapes are enough.

    Returns:
        The function and its parameters, `{"shared": params, "factors": ...}`, as `jaxeff.ensemble`
        returns them.

    Raises:
        SpecError: A pattern matches or decides no site, or two are equally specific for one.
        ValueError: Nothing has members, two counts differ, or a kernel isn't a parameter as it is.
    """
    check_key("batch_ensemble: key", key)
    check_function("batch_ensemble: f", f)
    check_params("batch_ensemble: params", params)
    check_settings(spec, Members, "Members(4)")
    axes = _kernels(f, params, x, spec)
    names = leaf_names(params)
    shapes = {n: jnp.shape(leaf) for n, leaf in zip(names, jax.tree.leaves(params), strict=True)}

    def start(key: PRNGKeyArray) -> Any:
        factors = {}
        for name, k in zip(axes, jax.random.split(key, len(axes)), strict=True):
            parts = zip(("inputs", "outputs"), axes[name], jax.random.split(k), strict=True)
            factors[name] = {
                part: jax.random.rademacher(each, _only(shapes[name], own), jnp.float32)
                for part, own, each in parts
            }
        return {"shared": params, "factors": factors}

    def h(*args: Any, **kwargs: Any) -> Any:
        position = next(i for i, arg in enumerate(args) if not is_key(arg))
        both = args[position]
        leaves, structure = jax.tree.flatten(both["shared"])
        for i, name in enumerate(names):
            if name in both["factors"]:
                own = both["factors"][name]
                scale = (own["inputs"] * own["outputs"]).astype(leaves[i].dtype)
                leaves[i] = leaves[i] * scale
        whole = jax.tree.unflatten(structure, leaves)
        return f(*args[:position], whole, *args[position + 1 :], **kwargs)

    counts = {setting.count for setting in spec.values() if setting is not None}
    if len(counts) != 1:
        raise ValueError(f"batch_ensemble: the members are as many everywhere, not {counts}")
    members = Members(counts.pop(), tied=True)
    return ensemble(key, h, start(key), {"factors/*": members}, init=start)  # type: ignore[return-value]


def _only(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if axis in axes else 1 for axis, size in enumerate(shape))


def _kernels(
    f: Callable[..., Any], params: Any, x: Any, spec: Mapping[str, Members | None]
) -> dict[str, Axes]:
    """Finds the kernels of sites, and which of their axes are inputs and outputs."""
    program = trace(f, params, x)
    settings, found = resolve(spec, program), dict[str, Axes]()
    for layer in program.sites:
        if settings.get(layer.site) is None or layer.kind != "linear" or layer.op is None:
            continue
        product = Contraction.of(layer.op)
        kernels = [layer.inputs[i] for i in layer.weights]
        if len(kernels) != 1 or kernels[0] not in program.inputs:
            raise ValueError(
                f"batch_ensemble: the kernel of {layer.site} is no parameter as it is; set None "
                "there"
            )
        side = product.side
        found[kernels[0].path] = (product.summed(side), product.free(side))
    if not found:
        raise ValueError("batch_ensemble: the spec chooses no layer with a kernel")
    return found
