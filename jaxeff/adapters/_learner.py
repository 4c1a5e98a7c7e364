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
it, in floats, or kept in 16 bits. `deploy` makes a bundle of the step, with ``state=("state",)``;
in C it is a struct whose bytes can be kept and loaded, and the library's `init` its reset.

Sharp edges:
    One example a step makes noisy updates: take a small rate, or `optax.MultiSteps`.
    What learns from new classes alone forgets the old ones: tell it some of those too.
    Logits are those before the update.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Int16, UInt16, UInt32

from jaxeff import compression, core, program
from jaxeff.adapters._lora import LoRA, init_lora, lora

PARTS = ("head", "norms")
HEADROOM, LAST = 8, 2**15 - 1


def cross_entropies(logits: Float[Array, "batch classes"], y: Int[Array, " batch"]) -> Array:
    """Computes the cross entropy of each label, `[batch]`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def _part(where: str, value: Any) -> None:
    """Checks for what learns: a name, or settings of adapters."""
    (core.one_of(*PARTS) if isinstance(value, str) else core.spec_of(LoRA))(where, value)


class _Floats(NamedTuple):
    """How a state keeps what learns in floating point: as it is."""

    def begin(self, learnt: Any, optimizer: optax.GradientTransformation) -> dict[str, Any]:
        """Makes the first state."""
        return {"learnt": learnt, "optimizer": optimizer.init(learnt)}

    def read(self, state: Any) -> tuple[Any, Any]:
        """Reads what learns, and what the optimizer keeps."""
        return state["learnt"], state["optimizer"]

    def write(self, state: Any, updates: Any, kept: Any) -> dict[str, Any]:
        """Makes the next state, of updates and of what the optimizer keeps now."""
        return {"learnt": optax.apply_updates(state["learnt"], updates), "optimizer": kept}


class _Codes(NamedTuple):
    """How a state keeps it in 16 bits; the methods are those of `_Floats`.

    Attributes:
        steps: Path -> distance of neighbouring values, a power of two: codes become floats, and
            updates numbers of steps, without an error.
        dtypes: Path -> dtype of the parameter.
        halved: For each leaf that the optimizer keeps, whether the state has its upper half.
    """

    steps: Mapping[str, float]
    dtypes: Mapping[str, Any]
    halved: Sequence[bool]

    @classmethod
    def of(cls, learnt: Mapping[str, Array], optimizer: optax.GradientTransformation) -> _Codes:
        """Finds a grid for each layer that learns."""
        largest: dict[str, float] = {}
        for path, array in learnt.items():
            # An adapter's second factor and many biases are zeros at first: a layer has one grid.
            layer = path.rpartition("/")[0]
            most = float(np.abs(np.asarray(array, np.float64)).max(initial=0))
            if not math.isfinite(most):
                raise ValueError(
                    f"learner: {path} has values that aren't finite, for which there is no grid of "
                    "int16: train it anew, or let dtype be None"
                )
            largest[layer] = max(most, largest.get(layer, 0))
        steps = {}
        for path in learnt:
            most = largest[path.rpartition("/")[0]] or 1.0
            steps[path] = 2.0 ** math.ceil(math.log2(HEADROOM * most / LAST))
        shapes = {array.shape for array in learnt.values()} - {()}
        halved = [
            jnp.result_type(leaf) == jnp.float32 and jnp.shape(leaf) in shapes
            for leaf in jax.tree.leaves(optimizer.init(learnt))
        ]
        return cls(steps, {path: array.dtype for path, array in learnt.items()}, halved)

    def begin(self, learnt: Any, optimizer: optax.GradientTransformation) -> dict[str, Any]:
        codes = {
            path: jnp.round(array.astype(jnp.float32) / self.steps[path]).astype(jnp.int16)
            for path, array in learnt.items()
        }
        leaves, structure = jax.tree.flatten(optimizer.init(self._values(codes)))
        middle = jnp.uint32(2**31)
        kept = [
            _upper_half(leaf, middle) if is_halved else leaf
            for leaf, is_halved in zip(leaves, self.halved, strict=True)
        ]
        kept = jax.tree.unflatten(structure, kept)
        return {"learnt": codes, "optimizer": kept, "count": jnp.uint32(0)}

    def read(self, state: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(state["optimizer"])
        floats = [
            _of_upper_half(leaf) if is_halved else leaf
            for leaf, is_halved in zip(leaves, self.halved, strict=True)
        ]
        return self._values(state["learnt"]), jax.tree.unflatten(structure, floats)

    def write(self, state: Any, updates: Any, kept: Any) -> dict[str, Any]:
        count = state["count"] + 1
        leaves, structure = jax.tree.flatten(kept)
        sizes = [update.size for update in updates.values()]
        sizes += [math.prod(jnp.shape(a)) * b for a, b in zip(leaves, self.halved, strict=True)]
        drawn = jax.random.bits(
            jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), count), (sum(sizes),)
        )
        parts = iter(jnp.split(drawn, np.cumsum(sizes)[:-1]))
        codes = {
            path: _advanced(state["learnt"][path], update / self.steps[path], next(parts))
            for path, update in updates.items()
        }
        pairs = list(zip(leaves, self.halved, parts, strict=True))
        halves = [_upper_half(a, bits) if is_halved else a for a, is_halved, bits in pairs]
        after = jax.tree.unflatten(structure, halves)
        return {"learnt": codes, "optimizer": after, "count": count}

    def _values(self, codes: Mapping[str, Array]) -> dict[str, Array]:
        return {
            path: (q.astype(jnp.float32) * self.steps[path]).astype(self.dtypes[path])
            for path, q in codes.items()
        }


def _advanced(
    codes: Int16[Array, "..."], by: Float[Array, "..."], bits: UInt32[Array, " n"]
) -> Int16[Array, "..."]:
    """Moves codes by numbers of steps, of which the fraction is the chance of one step more."""
    # 23 bits and a half fill a float32; without the half, an update of zero could be one of -1.
    draws = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    steps = jnp.floor(by.astype(jnp.float32) + draws.reshape(by.shape))
    steps = jnp.where(jnp.isnan(steps), 0, jnp.clip(steps, -2 * LAST, 2 * LAST))
    return jnp.clip(codes + steps.astype(jnp.int32), -LAST, LAST).astype(jnp.int16)


def _upper_half(values: Float[Array, "..."], bits: UInt32[Array, "..."]) -> UInt16[Array, "..."]:
    """Rounds floats to their first 16 bits, up with the chance that the others say."""
    draws = jnp.broadcast_to(bits >> 16, (values.size,)).reshape(values.shape)
    raised = jax.lax.bitcast_convert_type(values, jnp.uint32) + draws
    return (raised >> 16).astype(jnp.uint16)


def _of_upper_half(halves: UInt16[Array, "..."]) -> Float[Array, "..."]:
    return jax.lax.bitcast_convert_type(halves.astype(jnp.uint32) << 16, jnp.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class LearningStep:
    """The step that `learner` makes, ``step(codes, x, y, state) -> (logits, state)``.

    Made with ``dtype="int16"``, its state has ``learnt`` as int16 codes q by path, of values q s,
    and ``count``, uint32, of the steps that learnt something. Each layer has one s, the smallest
    power of two with which codes reach 8 times the layer's largest parameter, or 8 where all are
    zero. Parameters and gradients are floats within the step alone. An update u moves q by
    floor(u / s + r), with r drawn uniformly from (0, 1) by `jax.random` of the count: the fraction
    of u / s is the chance of one more, so that updates far below s add up in the mean (Gupta et
    al. 2015, arXiv:1502.02551).

    Arrays of float32 that the optimizer keeps, of a learnt array's shape (momentum, Adam's
    moments), are the upper 16 bits of such floats, as uint16, rounded likewise (Zamirai et al.
    2020, arXiv:2010.06192). Its counts and rates stay as they are.

    Why drawn: a spotter's head that learnt a word by 800 small updates gave 99.6 % of recordings
    the class that floats gave, and 98.1 % rounded to nearest, which loses updates below s / 2. A
    remainder of 8 bits carried from step to step, 99.9 %, takes half of what the codes save.

    Sharp edges:
        Codes end at -32767 and 32767, and stay there: ``abs(codes) == 32767`` has reached its end.
        An update that is NaN moves nothing.
        In C the codes are JAX's though the last bits of floats differ, unless such a bit decides a
        rounding: in an emulated Cortex-M4 none of 1.2 million by `optax.sgd`, 33 with momentum.
    """

    _memory: _Floats | _Codes
    _optimizer: optax.GradientTransformation
    _losses: Callable[[Any, Any, Any, Any], tuple[Array, Any]]

    def __call__(self, codes: Any, x: Any, y: Any, state: Any) -> tuple[Any, Any]:
        """Computes logits, and learns from the examples whose label is known: 0 or more."""
        known = y >= 0

        def mean_loss(learnt: Any) -> tuple[Array, Any]:
            losses, logits = self._losses(codes, learnt, x, jnp.where(known, y, 0))
            losses = jnp.where(known, losses, 0)
            return losses.sum() / jnp.maximum(known.sum(), 1).astype(losses.dtype), logits

        learnt, kept = self._memory.read(state)
        grads, logits = jax.grad(mean_loss, has_aux=True)(learnt)
        new = self._memory.write(state, *self._optimizer.update(grads, kept, learnt))
        return logits, jax.tree.map(lambda a, b: jnp.where(known.any(), a, b), new, state)

    def learnt(self, state: Any) -> dict[str, Array]:
        """Reads what learns from a state, in floating point: arrays by path."""
        return dict(self._memory.read(state)[0])


class LearningOptions(TypedDict, total=False):
    """How a step learns; `Learning` has their meaning and defaults."""

    optimizer: optax.GradientTransformation | None
    loss: Callable[[Any, Any], Float[Array, " batch"]]
    dtype: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """How a step learns, and what its state keeps.

    Attributes:
        optimizer: An optimizer of Optax; `optax.sgd(0.01)` if None.
        loss: The loss of each example, `loss(logits, y)`, `[batch]`.
        dtype: What the state keeps: floats as they are if None, or "int16" in half the bytes.
    """

    optimizer: optax.GradientTransformation | None = None
    loss: Callable[[Any, Any], Float[Array, " batch"]] = cross_entropies
    dtype: str | None = None

    def begin(
        self, losses: Callable[[Any, Any, Any, Any], tuple[Array, Any]], learnt: dict[str, Array]
    ) -> tuple[LearningStep, dict[str, Any]]:
        """Makes the step, and its first state, of losses and of what learns."""
        optimizer = optax.sgd(0.01) if self.optimizer is None else self.optimizer
        memory = _Floats() if self.dtype is None else _Codes.of(learnt, optimizer)
        return LearningStep(memory, optimizer, losses), memory.begin(learnt, optimizer)


@core.validate(
    x=core.input_batch,
    spec=core.string_mapping,
    what=_part,
    loss=core.function_of_form("loss(logits, y)"),
    dtype=core.one_of(None, "int16"),
)
@core.forwards(Learning, LearningOptions)
def learner(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    spec: Mapping[str, Any] | None = None,
    *,
    what: str | Mapping[str, LoRA | None] = "head",
    **options: Unpack[LearningOptions],
) -> tuple[LearningStep, Any, dict[str, Any]]:
    """Makes a step that computes logits, and learns from the labels that are known.

    Args:
        f: A pure function `f(params, x)` of logits.
        params: The parameters of `f`.
        x: Inputs of a step; of data only shapes count.
        spec: Grids of the body's layers, with ranges, as for `jaxeff.integer`; the body stays in
            floating point if None. What learns is computed so in any case.
        what: "head", the last linear layer; "norms", what layers of normalization scale by and
            add; or settings `LoRA` by pattern of sites.
        **options: `optimizer` of Optax, `optax.sgd(0.01)`; `loss`, that of each example,
            `loss(logits, y)`, `[batch]`, the cross entropy; and `dtype`, what the state keeps:
            floats as they are, or "int16" in half the bytes (`LearningStep`).

    Returns:
        ``step(codes, x, y, state) -> (logits, state)``; the parameters that it takes, in which the
        learnt ones lack; and the first state, ``{"learnt": arrays by path, "optimizer": ...}``.
        With no label from 0 on, nothing changes.

    Raises:
        ValueError: Nothing is there to learn, or a layer in whole numbers lies behind what learns,
            which has no gradient: both are named. Likewise what isn't finite, for "int16".
    """
    learning = Learning(**options)
    g, params = _with_adapters(f, params, x, what)
    traced = program.trace(g, params, x)
    sites, names = _learnt(traced, what)
    if spec is not None:
        spec = {**spec, **dict.fromkeys(sites)}
        _check_behind(traced, sites, program.resolve(spec, traced).keys())
        g = compression.integer(g, spec)
    split = _Split.of(traced, params, names, spec is not None)

    def losses(codes: Any, learnt: Any, x: Any, y: Any) -> tuple[Array, Any]:
        logits = g(split.joined(codes, learnt), x)
        return learning.loss(logits, y), logits

    leaves = jax.tree.leaves(params)
    learnt = {path: jnp.asarray(leaves[i]) for path, i in split.places.items()}
    step, state = learning.begin(losses, learnt)
    return step, split.frozen(g.convert(params, x) if split.is_integer else leaves), state


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
