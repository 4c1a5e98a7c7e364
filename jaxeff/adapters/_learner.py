"""`learner`: a step that learns a network's last layer, adapters or norms in place, on a device.

```python
import jax
import optax
from jaxeff.adapters import learner
from jaxeff.compression import Int, calibrate
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
step, codes, state = learner(f, params, x[:1], spec, optimizer=optax.sgd(0.05))
for one, label in zip(x[:20, None], y[:20, None]):
    logits, state = jax.jit(step)(codes, one, label, state)        # label -1: nothing is learnt
```

The body is in whole numbers, as of `jaxeff.integer`, without a gradient; what learns lies behind
it, in floating point. `deploy` makes a bundle of the step, with ``state=("state",)``; in C it is a
struct without pointers, whose bytes can be kept and loaded, and the library's `init` its reset.

Sharp edges:
    One example a step makes noisy updates: take a small rate, or `optax.MultiSteps`.
    What learns from new classes alone forgets the old ones: tell it some of those too.
    Logits are those before the update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxeff import compression, core, program
from jaxeff.adapters._lora import LoRA, init_lora, lora

Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]

PARTS = ("head", "norms")


def cross_entropies(logits: Float[Array, "batch classes"], y: Int[Array, " batch"]) -> Array:
    """Computes the cross entropy of each label, `[batch]`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def _part(where: str, value: Any) -> None:
    """Checks for what learns: a name, or settings of adapters."""
    (core.one_of(*PARTS) if isinstance(value, str) else core.spec_of(LoRA))(where, value)


@core.validate(
    x=core.input_batch,
    spec=core.string_mapping,
    what=_part,
    loss=core.function_of_form("loss(logits, y)"),
)
def learner(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    spec: Mapping[str, Any] | None = None,
    *,
    what: str | Mapping[str, LoRA | None] = "head",
    optimizer: optax.GradientTransformation | None = None,
    loss: Callable[[Any, Any], Float[Array, " batch"]] = cross_entropies,
) -> tuple[Step, Any, dict[str, Any]]:
    """Makes a step that computes logits, and learns from the labels that are known.

    Args:
        f: A pure function `f(params, x)` of logits.
        params: The parameters of `f`.
        x: Inputs of a step; of data only shapes count.
        spec: Grids of the body's layers, with ranges, as for `jaxeff.integer`; the body stays in
            floating point if None. What learns does so in any case.
        what: "head", the last linear layer; "norms", what layers of normalization scale by and
            add; or settings `LoRA` by pattern of sites.
        optimizer: An optimizer of Optax; `optax.sgd(0.01)` if None.
        loss: The loss of each example, `loss(logits, y)`, `[batch]`.

    Returns:
        ``step(codes, x, y, state) -> (logits, state)``; the parameters that it takes, in which the
        learnt ones lack; and the first state, ``{"learnt": arrays by path, "optimizer": ...}``.
        With no label from 0 on, nothing changes.

    Raises:
        ValueError: Nothing is there to learn, or a layer in whole numbers lies behind what learns,
            which has no gradient: both are named.
    """
    optimizer = optax.sgd(0.01) if optimizer is None else optimizer
    g, params = _with_adapters(f, params, x, what)
    traced = program.trace(g, params, x)
    sites, names = _learnt(traced, what)
    if spec is not None:
        spec = {**spec, **dict.fromkeys(sites)}
        _check_behind(traced, sites, program.resolve(spec, traced).keys())
        g = compression.integer(g, spec)
    split = _Split.of(traced, params, names, spec is not None)

    def step(codes: Any, x: Any, y: Any, state: Any) -> tuple[Any, Any]:
        known = y >= 0

        def mean_loss(learnt: Any) -> tuple[Array, Any]:
            logits = g(split.joined(codes, learnt), x)
            losses = jnp.where(known, loss(logits, jnp.where(known, y, 0)), 0)
            return losses.sum() / jnp.maximum(known.sum(), 1).astype(losses.dtype), logits

        grads, logits = jax.grad(mean_loss, has_aux=True)(state["learnt"])
        updates, after = optimizer.update(grads, state["optimizer"], state["learnt"])
        new = {"learnt": optax.apply_updates(state["learnt"], updates), "optimizer": after}
        return logits, jax.tree.map(lambda a, b: jnp.where(known.any(), a, b), new, state)

    leaves = jax.tree.leaves(params)
    learnt = {path: jnp.asarray(leaves[i]) for path, i in split.places.items()}
    frozen = split.frozen(g.convert(params, x) if split.is_integer else leaves)
    return step, frozen, {"learnt": learnt, "optimizer": optimizer.init(learnt)}


def _with_adapters(
    f: Callable[..., Any], params: Any, x: Any, settings: str | Mapping[str, LoRA | None]
) -> tuple[Any, Any]:
    """Makes the adapted function one of a single pytree of parameters; by a name it is `f`."""
    if isinstance(settings, str):
        return f, params
    adapters = init_lora(jax.random.key(0), f, params, x, settings)
    adapted = lora(f, settings)
    return (
        lambda p, x: adapted(p["frozen"], p["adapters"], x),
        {"adapters": adapters, "frozen": params},
    )


class _Split(NamedTuple):
    """How parameters are parted into those that learn, in the state, and the frozen others.

    Attributes:
        structure: The structure of all of them.
        places: Path -> number of the leaf, of those that learn.
        is_integer: Whether the frozen ones are codes of `jaxeff.integer`.
    """

    structure: Any
    places: Mapping[str, int]
    is_integer: bool

    @classmethod
    def of(
        cls, traced: program.Program, params: Any, names: Container[str], is_integer: bool
    ) -> _Split:
        """Finds the leaves with the given names, among those of the parameters."""
        structure: Any = jax.tree.structure(params)
        # Leaves of the parameters come before those of the data.
        weights = enumerate(traced.inputs[: structure.num_leaves])
        places = {value.path: i for i, value in weights if value.path in names}
        return cls(structure, places, is_integer)

    def frozen(self, parameters: Any) -> Any:
        """Leaves out what learns, of codes or of a list of leaves."""
        learnt = {str(i) for i in self.places.values()}
        # Codes keep by number, as text, what isn't in whole numbers.
        if self.is_integer:
            rest = {name: leaf for name, leaf in parameters.rest.items() if name not in learnt}
            return dataclasses.replace(parameters, rest=rest)
        return {str(i): leaf for i, leaf in enumerate(parameters) if str(i) not in learnt}

    def joined(self, frozen: Any, learnt: Mapping[str, Array]) -> Any:
        """Puts what learns back among the frozen parameters."""
        by_place = {self.places[path]: array for path, array in learnt.items()}
        if self.is_integer:
            rest = {**frozen.rest, **{str(i): array for i, array in by_place.items()}}
            return dataclasses.replace(frozen, rest=rest)
        count = self.structure.num_leaves
        filled = [by_place.get(i, frozen.get(str(i))) for i in range(count)]
        return jax.tree.unflatten(self.structure, filled)


def _learnt(traced: program.Program, what: str | Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Finds the sites of what learns, and the paths of its parameters."""
    kind = {"head": "linear", "norms": "normalization"}.get(what if isinstance(what, str) else "")
    if kind is None:
        names = {v.path for v in traced.inputs if v.path.startswith("adapters/")}
        sites = [each for each in traced.layers if names & _parameters_read(each)]
        return [each.site for each in sites], names
    layers = [each for each in traced.layers if each.kind == kind and _parameters_read(each)]
    layers = layers[-1:] if what == "head" else layers
    if not layers:
        there = ", ".join(each.site for each in traced.layers if _parameters_read(each))
        raise ValueError(
            f"learner: what={what!r} is no layer here; layers with parameters are {there}: give "
            'what={"a site": LoRA(4)}, or another of ' + ", ".join(PARTS)
        )
    return [each.site for each in layers], {
        path for each in layers for path in _parameters_read(each)
    }


def _parameters_read(layer: program.Layer) -> set[str]:
    return {value.path for value in layer.inputs if value.is_weight and value.path}


def _check_behind(traced: program.Program, learnt: Sequence[str], coded: Any) -> None:
    """Checks that no layer in whole numbers depends on what learns."""
    reached: dict[Any, str] = {}
    for layer in traced.layers:
        origin = next((reached[v] for v in layer.inputs if v in reached), None)
        inside = [each.site for body in layer.programs for each in body.sites]
        names = [site for site in (layer.site, *inside) if site in coded]
        if origin is not None and names:
            raise ValueError(
                f"learner: {origin} learns, and {names[0]} behind it is in whole numbers, which "
                f"have no gradient: leave {names[0]} in floating point by None in the spec, or let "
                "what lies behind it learn"
            )
        if layer.site in learnt:
            origin = layer.site
        if origin is not None:
            reached.update(dict.fromkeys(layer.outputs, origin))
