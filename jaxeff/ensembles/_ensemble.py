"""`ensemble`: members of chosen sites behind one shared network, as a transform of its function.

```python
import jax

import jaxeff
from jaxeff.ensembles import Members
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
g, heads = jaxeff.ensemble(jax.random.key(0), f, params, {"fc2": Members(10)})
logits = g(heads, x)                                # [members, batch, classes]
g, networks = jaxeff.ensemble(jax.random.key(0), f, params, {"*": Members(10)})
```

The result is `jax.vmap` over the leaves that have members. What depends on none of them is computed
once, since `vmap` batches only what depends on a batched value: ten heads cost one network and nine
heads, `{"*": ...}` is a deep ensemble, and everything between is the same function. It is a pure
function of one pytree, so it composes: `noisy(g, ...)`, `quantized(g, ...)` and `moments(g)` see
the sites of `f`, `fit` and `sweep` train all members as one program.

Patterns are those of a spec, over the names of parameters: `fc3` is every parameter of the module
`fc3`, `fc3/kernel` one of them, `"*"` all. The most specific pattern decides, None shares.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxeff import core
from jaxeff.program import Program, Target, check_settings, deciding_patterns, trace
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import leaf_names

MOST_APART = 16
"""Members that are computed one after the other: each adds its network to what is compiled."""


@core.register_setting
class Members(core.Setting):
    """The number of members of a site, and their start.

    Members have to start apart: identical ones get identical gradients and stay one network.

    - fresh ones, from the function that made the parameters, `ensemble(..., init=init)`: what a
      deep ensemble is (Lakshminarayanan et al. 2017);
    - fresh ones without such a function: each leaf drawn from a normal distribution with its own
      mean and standard deviation, and a constant leaf (biases of zero, scales of one) kept as it
      is;
    - `Members(10, spread=0.1)`: around the given parameters, each leaf plus normal noise of
      `spread` times its standard deviation. With `spread=0.0` they are copies.

    Attributes:
        count: Number of members, at least 1; the same at every site of an ensemble.
        spread: Distance of the members' starts from the given parameters, in standard deviations of
            each leaf; None starts from fresh ones.
        tied: Whether a parameter that several sites read may have members all the same: those of
            one site are then those of the others.

    Raises:
        TypeError: A number is none.
        ValueError: `spread` is negative.
    """

    count: Annotated[int, core.Number(integer=True)] = core.static()
    spread: Annotated[core.NonNegative | None, core.Number(0)] = core.static(None)
    tied: bool = core.static(False)


def chosen_leaves(spec: Mapping[str, Members | None], params: Any) -> dict[str, Members]:
    """Finds the leaves that have members, by name.

    Args:
        spec: Settings by pattern of sites or parameters.
        params: The parameters of one network.

    Raises:
        TypeError: The spec is none.
        SpecError: A pattern matches or decides no parameter, or two are equally specific for one.
    """
    check_settings(spec, Members, "so many members, such as Members(10)")
    for pattern, setting in spec.items():
        if setting is not None and setting.count < 1:
            raise ValueError(
                f"ensemble: {pattern!r} has {setting.count} members; give it Members(1) or more, "
                "or None for a shared one"
            )
    targets = [Target(name, name.rpartition("/")[0]) for name in leaf_names(params)]
    decided = deciding_patterns(spec, targets, what="parameter")
    settings = {name: spec[pattern] for name, pattern in decided.items()}
    chosen = {name: setting for name, setting in settings.items() if setting is not None}
    if not chosen:
        raise ValueError(
            "ensemble: the spec gives nothing members; name a site, such as "
            '{"fc3": Members(10)}, or "*" for whole networks'
        )
    counts = {setting.count: decided[name] for name, setting in chosen.items()}
    if len(counts) > 1:
        (first, a), (second, b), *_ = counts.items()
        raise ValueError(
            f"ensemble: {a!r} has {first} members and {b!r} {second}: a member is one network, so "
            "give all sites as many"
        )
    return chosen


def start(
    key: PRNGKeyArray,
    params: Any,
    chosen: Mapping[str, Members],
    init: Callable[[PRNGKeyArray], Any] | None,
) -> Any:
    """Makes an ensemble's parameters: chosen leaves with an axis of members, others as given."""
    leaves, structure = jax.tree.flatten(params)
    names = leaf_names(params)
    count = next(iter(chosen.values())).count
    fresh: list[Any] = [None] * len(leaves)
    if init is not None:
        core.check_function("ensemble: init", init, "init(key) -> params")
        # Whole networks, of which only the chosen leaves are taken.
        initialized = jax.vmap(init)(jax.random.split(key, count))
        expected: Any = structure
        if jax.tree.structure(initialized) != expected:
            raise ValueError(
                "ensemble: init makes parameters of another structure than those given: it takes a "
                f"key and returns {structure}, not {jax.tree.structure(initialized)}"
            )
        fresh = jax.tree.leaves(initialized)
    started = []
    for name, leaf, new in zip(names, leaves, fresh, strict=True):
        if name not in chosen:
            started.append(leaf)
        elif new is not None and chosen[name].spread is None:
            if new.shape[1:] != jnp.shape(leaf):
                raise ValueError(
                    f"ensemble: init makes {name} of shape {new.shape[1:]}, the parameters given "
                    f"have {jnp.shape(leaf)}"
                )
            started.append(new)
        else:
            # By name: members of one leaf don't depend on which others have members.
            at = jax.random.fold_in(key, zlib.crc32(name.encode()))
            started.append(_started(at, jnp.asarray(leaf), chosen[name], count))
    return jax.tree.unflatten(structure, started)


def _started(key: PRNGKeyArray, leaf: Array, setting: Members, count: int) -> Array:
    # Counters and keys can't be perturbed: every member gets the same.
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.broadcast_to(leaf, (count, *leaf.shape))
    noise = jnp.std(leaf) * jax.random.normal(key, (count, *leaf.shape), leaf.dtype)
    if setting.spread is None:
        # A constant leaf's deviation may be a rounding error.
        drawn = jnp.mean(leaf) + noise
        return jnp.where(jnp.all(leaf == leaf.ravel()[0]), leaf.ravel()[0], drawn)
    return leaf[None] + jnp.asarray(setting.spread, leaf.dtype) * noise


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The function of an ensemble, `g(params, *args)`; a random key may come first, as in `f`.

    Sharp edges:
        What stands behind a site with members exists once per member, whatever its pattern says.
        A random key goes to every member: they see the same noise. Around the ensemble,
        `noisy(g, spec)`, noise is drawn for each.
        A convolution with members is a grouped convolution, which processors run slowly, backward
        most of all; members behind the convolutions don't have that cost. `g.apart(params, x)`
        computes up to `MOST_APART` whole networks one after the other, as `member_loss(g)` does: a
        step of five LeNet-5 took 3.8 times what five networks take, and takes 1.3 times that. Each
        member adds its network to what is compiled.
        The second way to start forgets what has been trained, and takes a leaf's distribution for a
        normal one. A leaf that is constant stays so under a spread, too: the noise is in its own
        units.

    Attributes:
        f: The function of one network.
        count: Number of members.
        chosen: Settings of the leaves that have members, by name.
        mutable: Whether `f` takes a state after its parameters and returns a new one.

    References:
        Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep
        Ensembles", arXiv:1612.01474. Steger et al., "Function Space Diversity for Uncertainty
        Prediction via Repulsive Last-Layer Ensembles", arXiv:2412.15758.
    """

    f: Callable[..., Any]
    count: int
    chosen: Mapping[str, Members]
    mutable: bool = False

    def __post_init__(self) -> None:
        # Ties are looked for in every call, in what is read of `f` for new shapes alone.
        object.__setattr__(self, "f", core.read_once(self.f))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of all members, `[members, ...]` each.

        Raises:
            ValueError: A leaf that has members lacks their axis, or its parameter is read by sites
                that would have members by it alone.
        """
        position = next((i for i, arg in enumerate(args) if not core.is_key(arg)), 0)
        self._check_ties(position, args, kwargs)
        # Lists of leaves: a tree of axes would take a setting's empty field (None) for a shared
        # leaf.
        structures = {position: jax.tree.structure(args[position])}
        out_axes: Any = 0
        if self.mutable:
            structures[position + 1] = jax.tree.structure(args[position + 1])
            out_axes = (0, self.axes(args[position + 1]))
        flat_args = [jax.tree.leaves(arg) if i in structures else arg for i, arg in enumerate(args)]
        axes = [self.leaf_axes(arg) if i in structures else None for i, arg in enumerate(args)]

        def one(*member_args: Any) -> Any:
            rebuilt = (
                jax.tree.unflatten(structures[i], arg) if i in structures else arg
                for i, arg in enumerate(member_args)
            )
            return self.f(*rebuilt, **kwargs)

        # Only what depends on a leaf with members is batched: the shared part runs once.
        mapped = jax.vmap(one, in_axes=tuple(axes), out_axes=out_axes, axis_size=self.count)
        try:
            return mapped(*flat_args)
        except ValueError as error:
            if not self.mutable or "out_axes" not in str(error):
                raise
            raise ValueError(
                "ensemble: a state that the members share would have to become theirs, for it "
                'stands behind a site with members; give it members, too, such as {"bn*": '
                f"Members({self.count})}}"
            ) from error

    def apart(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of a call, computed member by member where that is faster.

        That is where whole networks have members, and one of their layers is a convolution; else it
        is the call itself. Transforms take the call, whose layers are those of `f`.
        """
        position = next((i for i, arg in enumerate(args) if not core.is_key(arg)), 0)
        of_members = range(position, position + 1 + self.mutable)
        if not self._is_slow_together(of_members, args, kwargs):
            return self(*args, **kwargs)
        structures = {i: jax.tree.structure(args[i]) for i in of_members}
        # Not by indices: their derivative would fill up zeros for every member and add them.
        sizes = (1,) * self.count
        split = {
            i: [jax.lax.split(jnp.asarray(leaf), sizes) for leaf in jax.tree.leaves(args[i])]
            for i in of_members
        }

        def of(member: int) -> Any:
            rebuilt = list(args)
            for i, parts in split.items():
                leaves = [part[member][0] for part in parts]
                rebuilt[i] = jax.tree.unflatten(structures[i], leaves)
            return self.f(*rebuilt, **kwargs)

        each = [of(member) for member in range(self.count)]
        return jax.tree.map(lambda *results: jnp.stack(results), *each)

    def _is_slow_together(self, of_members: range, args: Any, kwargs: Any) -> bool:
        """Tells whether whole networks have members, few enough, and one layer is a convolution."""
        shared = any(None in self.leaf_axes(args[i]) for i in of_members)
        if shared or self.count > MOST_APART:
            return False
        layers = self._program(of_members, args, kwargs).layers
        nodes = (node for layer in layers for node in layer.nodes)
        return any(node.primitive is prim.p.conv_general_dilated_p for node in nodes)

    def _program(self, of_members: range, args: Any, kwargs: Any) -> Program:
        """Reads one member: its sites are those of `f`."""
        shapes = [
            arg if core.is_key(arg) else jax.eval_shape(lambda tree: tree, arg) for arg in args
        ]
        for i in of_members:
            shapes[i] = jax.eval_shape(lambda tree: self.member(tree, 0), args[i])
        return trace(self.f, *shapes, **kwargs)

    def axes(self, params: Any) -> Any:
        """Finds the axis of members: 0 or None for each leaf, as `jax.vmap` takes it.

        Args:
            params: The parameters of the ensemble, or its state.

        Raises:
            ValueError: A leaf that has members has no axis of so many.
        """
        return jax.tree.unflatten(jax.tree.structure(params), self.leaf_axes(params))

    def leaf_axes(self, params: Any) -> list[int | None]:
        """Finds the axis of members as `axes` does, in a list with one entry per leaf."""
        leaves, names = jax.tree.leaves(params), leaf_names(params)
        modules = {name.rpartition("/")[0] for name in self.chosen}
        has = [name in self.chosen for name in names]
        if not any(has):  # a state: it goes with the module that it belongs to
            has = [name.rpartition("/")[0] in modules for name in names]
        for name, leaf, chosen in zip(names, leaves, has, strict=True):
            if chosen and jnp.shape(leaf)[:1] != (self.count,):
                raise ValueError(
                    f"{name} has {self.count} members, so its first axis must be of that length, "
                    f"but its shape is {jnp.shape(leaf)}: give what `ensemble` returned"
                )
        return [0 if chosen else None for chosen in has]

    def member(self, params: Any, index: Any) -> Any:
        """Selects the parameters (or the state) of one network, for `f`.

        Args:
            params: Parameters of the ensemble.
            index: The member's number, from 0.
        """
        leaves, structure = jax.tree.flatten(params)
        pairs = zip(leaves, self.leaf_axes(params), strict=True)
        return jax.tree.unflatten(
            structure, [leaf if axis is None else leaf[index] for leaf, axis in pairs]
        )

    def of(self, f: Callable[..., Any]) -> Ensemble:
        """Gives the same members another function of the same parameters, as a hidden layer's."""
        return replace(self, f=f)

    def member_leaves(self, params: Any) -> list[Any]:
        """Lists the leaves that have members, `[members, ...]` each."""
        pairs = zip(jax.tree.leaves(params), self.leaf_axes(params), strict=True)
        return [leaf for leaf, axis in pairs if axis == 0]

    def _check_ties(self, position: int, args: Any, kwargs: Any) -> None:
        params = args[position]
        # Where all leaves have members nothing is shared, so a tie changes nothing.
        free = all(setting.tied for setting in self.chosen.values())
        if free or len(self.member_leaves(params)) == len(jax.tree.leaves(params)):
            return
        readers = _readers(
            self._program(range(position, position + 1 + self.mutable), args, kwargs)
        )
        for name, setting in self.chosen.items():
            sites = readers.get(name, [])
            if len(sites) > 1 and not setting.tied:
                raise ValueError(
                    f"ensemble: {name} is read at {', '.join(sites)}, so members of one are "
                    'members of all, and what lies between runs once for each. Give "*" members '
                    f"for whole networks, say Members({self.count}, tied=True) if that is meant, "
                    "or give the sites parameters of their own"
                )


@core.validate(init=core.function_of_form("init(key)"))
def ensemble(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    spec: Mapping[str, Members | None],
    *,
    init: Callable[[PRNGKeyArray], Any] | None = None,
    state: Any = None,
) -> tuple[Any, ...]:
    """Gives chosen sites members.

    Args:
        key: Random key; members start from it.
        f: A pure function `f(params, *args)`; a random key may come before `params`.
        params: The parameters of `f`. What is shared stays as it is here.
        spec: Maps patterns of sites or parameters to `Members`, or to None for what is shared.
        init: `init(key) -> params` makes fresh parameters; see `Members` for what is done without.
        state: The mutable state of `f(params, state, *args) -> (outputs, new state)`, as
            `functional(model, mutable=True)` returns it. It has members where its module has.

    Returns:
        The function `g(params, *args)`, whose results have a first axis of members, and the
        parameters of the ensemble; with a state, `g(params, state, *args)`, parameters and state.
        `g.member(params, i)` are the parameters of one network.

    Raises:
        TypeError: An argument is of another kind.
        SpecError: A pattern matches or decides no parameter, or two are equally specific for one.
        ValueError: Nothing has members, a count is below one, two counts differ, or `init` makes
            other parameters; when called: several sites read a parameter that has members.
    """
    chosen = chosen_leaves(spec, params)
    count = next(iter(chosen.values())).count
    g = Ensemble(f, count, chosen, mutable=state is not None)
    started = start(key, params, chosen, init)
    if state is None:
        return g, started
    modules = {name.rpartition("/")[0] for name in chosen}
    leaves, structure = jax.tree.flatten(state)
    # Copies: running statistics of all members start from the given ones.
    stacked = [
        jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))) if name.rpartition("/")[0] in modules
        else leaf
        for name, leaf in zip(leaf_names(state), leaves, strict=True)
    ]  # fmt: skip
    return g, started, jax.tree.unflatten(structure, stacked)


def _readers(program: Program) -> dict[str, list[str]]:
    """Maps parameters to the sites that read them."""
    readers: dict[str, list[str]] = {}
    for layer in program.sites:
        if layer.kind == "control flow" or layer.auxiliary:
            continue
        for path in {path for v in layer.inputs if v.is_weight for path in v.leaves}:
            readers.setdefault(path, []).append(layer.site)
    return readers
