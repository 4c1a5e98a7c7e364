"""`pruned` and `masked`: a model without the channels that a plan removes.

```python
import jax.numpy as jnp
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.pruning import Plan, channels, masked, pruned

f, params, (x, y) = small_classifier()
groups = channels(f, params, x)
plan = Plan({"fc1/kernel:1": jnp.arange(32) < 8}, groups)    # keeps 8 of 32
g, small = pruned(f, plan), plan.shrink(params)
logits = g(small, x)                                          # masked(f, plan)(params, x)
```

Sharp edges:
    `masked` keeps all shapes and zeroes parameters, so its booleans may be traced. `pruned` has new
    shapes, so its plan has to be known when it is made.
    Where a statistic is taken over channels (`Group.crossed`), the two differ: a smaller model has
    the mean of what is left, and a `CrossedWarning` says where. `Plan.crossed`, which `Prune(...,
    crossed=...)` sets, says that this is meant, or keeps such means equal.
    Noise that `f` draws for channels (dropout) is drawn at the old shape: as `masked` has it.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import instance_of, is_key, read_once, validate
from jaxeff.program import Program, check_open, evaluate, read_out_by, trace
from jaxeff.program.reading import argument_leaves
from jaxeff.pruning._emission import Emission, gated
from jaxeff.pruning._plan import Plan
from jaxeff.pruning.dependencies import ZEROS, PlanError, leaf_path, read_channels, warn_of_crossed


@validate(plan=instance_of(Plan))
def masked(f: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Returns the model with zeros in the place of what is removed.

    Args:
        f: A pure function `f(params, *args)`; keys may stand before the parameters.
        plan: Channels that stay; its booleans may be traced. Where it holds numbers, they multiply
            the channels wherever these are summed (`jaxeff.pruning.masked`).

    Returns:
        A pure function like `f`, of the old shapes.

    Raises:
        PlanError: When called: the function has no such group, or one of other channels.
    """
    known = {group.name: group.size for group in plan.channels}
    for name, keep in plan.keep.items():
        if name not in known:
            raise PlanError(f"the model has no group {name!r}; there are {list(known)}")
        if jnp.shape(keep) != (known[name],):
            raise PlanError(
                f"{name!r} has {known[name]} channels, the plan {jnp.shape(keep)}: give one per "
                "channel; what a reshape splits has groups for its factors"
            )
    inner = gated(f, plan.gates, plan.channels, _missing) if plan.gates else f

    @functools.wraps(f)
    def g(*args: Any, **kwargs: Any) -> Any:
        # Keys may come first, as in a function that `noisy` returns: the parameters are what
        # follows.
        at = next((i for i, x in enumerate(args) if not is_key(x)), len(args))
        if at < len(args):
            _check_masked(plan, args[at])
        masked_args = (plan.mask(x) if i == at else x for i, x in enumerate(args))
        return inner(*masked_args, **kwargs)

    return g


@validate(plan=instance_of(Plan))
def pruned(f: Callable[..., Any], plan: Plan, *, rescale: bool = False) -> Callable[..., Any]:
    """Returns the smaller model.

    Sharp edge: a number that came from a shape stays what it was, but for the count of a sum's
    entries: attention's 1/sqrt(d) is that of the old d unless asked (`rescale`).

    Args:
        f: A pure function `f(params, *args)`; running statistics may be an argument or closed over.
        plan: Channels that stay; known now.
        rescale: Whether to scale by the roots of the new sizes where the model scales by those of
            old ones, as attention does by 1/sqrt(d). It isn't the masked model then.

    Returns:
        A pure function `g(small, *args)` of what `plan.shrink` returns for parameters (and running
        statistics), of batches of any size. It is a function like any other: it trains,
        transforms, and is exported.

    Raises:
        PlanError: The plan is traced, or removes what it can't; when called: parameters of other
            shapes than the plan's model leaves.

    Warns:
        CrossedWarning: A statistic is taken over channels of which some are removed, and the plan
            doesn't say whether over those left; the message names the sites.
    """
    # A plan that keeps everything is the function itself, bit for bit.
    if all(keep.all() for keep in plan.concrete().values()):
        return f
    losing = (
        plan.channels[name] for name, keep in plan.keep.items() if not np.all(np.asarray(keep))
    )
    warn_of_crossed((g for g in losing if g.name not in plan.crossed), stacklevel=2)

    f = read_once(f)

    @functools.wraps(f)
    def g(*args: Any, **kwargs: Any) -> Any:
        # The program is read at the old shapes, where its axes were related; then its equations are
        # restated for the small arrays.
        enlarged = tuple(_enlarged(plan, argument) for argument in args)
        program = trace(f, *enlarged, **kwargs)
        check_open(program, "pruned")
        cut = [layer.site for layer in program.sites if read_out_by(layer.nodes) == "analog"]
        if cut:
            raise PlanError(
                f"pruned can't act on analog(f, spec), which has cut {cut[0]!r} into tiles: take "
                "pruned(f, plan) first, and analog of it"
            )
        small, emission = _restated(program, plan, rescale)
        outputs = evaluate(small, emission.rule, None, argument_leaves(args, kwargs))
        return jax.tree.unflatten(program.out_tree, outputs)

    return g


def _restated(program: Program, plan: Plan, rescale: bool) -> tuple[Program, Emission]:
    """Checks that a program can lose what a plan removes, and prepares its smaller equations."""
    all_channels = read_channels(program)
    ids = {group.name: d for group, d in zip(all_channels, all_channels.dimensions, strict=True)}
    # Names first: a plan of another model may have groups that aren't here.
    for name in plan.keep:
        if name not in ids:
            raise _missing(name)
    for group in all_channels:
        if group.held and not np.all(np.asarray(plan.keep.get(group.name, True))):
            raise PlanError(
                f"{group.name!r} can't lose channels of this function: {group.held[0]}; prune "
                "before what does that, or take pruned(f, plan) first and transform it"
            )
    keep = dict(zip(plan.keep, plan.concrete().values(), strict=True))
    for name, where in keep.items():
        if all_channels[name].held and not where.all():
            raise PlanError(all_channels[name].refusal)
    zeros = frozenset(ids[name] for name in keep if plan.crossed.get(name) == ZEROS)
    by_dimension = {ids[name]: where for name, where in keep.items()}
    emission = Emission(all_channels.labels, by_dimension, rescale, zeros)
    return _cut_constants(program, emission), emission


def _check_masked(plan: Plan, params: Any) -> None:
    """Checks that parameters are those of the plan's model: others would stay as they are."""
    names = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = plan.channels.find(leaf_path(path))
        axes = plan.channels.leaves.get(name, ()) if name else ()
        wanted = tuple(axis.size for axis in axes)
        names.add(name)
        if name and jnp.shape(leaf) not in ((), wanted):
            raise PlanError(
                f"{leaf_path(path)} has shape {jnp.shape(leaf)}, but the plan is of a model whose "
                f"{name} has shape {wanted}: make it of this function, with the groups of "
                "channels(f, params, x)"
            )
    # A group is named after the parameter that makes it.
    makers = {group.rpartition(":")[0] for group in plan.keep}
    if missing := makers & plan.channels.leaves.keys() - names:
        raise PlanError(
            f"masked: these parameters have no {sorted(missing)[0]}, whose channels the plan is "
            "about; take those of the function that the plan was made of (those of an integer "
            "network before `convert`)"
        )


def _missing(name: str) -> PlanError:
    return PlanError(
        f"the function has no group {name!r} at these arguments; the plan is of another model"
    )


def _enlarged(plan: Plan, argument: Any) -> Any:
    """Returns the shapes of an argument before anything was removed."""
    keep = plan.concrete()

    def old(path: Any, leaf: Any) -> Any:
        name = plan.channels.find(leaf_path(path))
        if name is None or not hasattr(leaf, "shape"):
            return leaf
        axes = plan.channels.leaves[name]
        emission = Emission(plan.channels.labels, keep)
        left = tuple(map(emission.size, axes))
        if tuple(leaf.shape) != left:
            raise PlanError(
                f"{name} has shape {tuple(leaf.shape)}, but what the plan leaves of it has {left}: "
                "give plan.shrink(params), and of an argument that holds batch statistics the same"
            )
        return jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), leaf.dtype)

    return jax.tree_util.tree_map_with_path(old, argument)


def _cut_constants(program: Program, emission: Emission) -> Program:
    """Returns the program with its constants cut, those of loops and branches too."""
    constants = {
        value: emission.cut(x, emission.labels.of(value)) for value, x in program.constants.items()
    }
    layers = [
        replace(layer, programs=tuple(_cut_constants(body, emission) for body in layer.programs))
        if layer.kind == "control flow"
        else layer
        for layer in program.layers
    ]
    return replace(program, constants=constants, layers=tuple(layers))
