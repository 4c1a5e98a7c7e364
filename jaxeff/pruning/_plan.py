"""`Plan`: which channels of a model stay, and what that makes of trees of its shapes.

A plan is a pytree whose leaves are booleans, one array per group: many plans are one axis more, so
a `vmap` over plans evaluates them all in one program (`masked`). It belongs to the model it was
made for, by the shapes of its parameters, and is saved as text.

In the place of booleans there may be numbers, *gates* that multiply channels: they are drawn,
learnt and penalised (`jaxeff.pruning.gates`), and `above` makes a plan of them that can be carried
out.

`save_pruned` keeps a smaller model in a folder, its plan as text beside it:

```python
from jaxeff.nn import small_classifier
from jaxeff.pruning import Prune, channels, load_pruned, prune_plan, pruned, save_pruned

f, params, (x, y) = small_classifier()
plan = prune_plan(f, params, x, {"fc1": Prune(0.5)})
save_pruned("small", plan, plan.shrink(params))

plan, small = load_pruned("small", channels(f, params, x), params)
logits = pruned(f, plan)(small, x)
```
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import Table, instance_of, is_concrete, parameter_tree, validate
from jaxeff.pruning import dependencies
from jaxeff.pruning.dependencies import leaf_path
from jaxeff.store import atomic_folder, load_metadata, load_pytree, save_pytree, write_atomically

_FORMAT = "jaxeff-plan-1"


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, repr=False)
class Plan:
    """The channels that every group keeps.

    Attributes:
        keep: Mapping from group to an array of booleans `[channels]`, or of numbers that multiply
            the channels; groups that lose nothing may be left out.
        channels: The groups that it is about.
        crossed: Mapping from group that a statistic crosses to the channels it is taken of: the
            channels "left", or all of them, the removed ones as "zeros". A group that isn't named
            has "left", and `pruned` warns of it.
    """

    keep: dict[str, Any]
    channels: dependencies.Channels
    crossed: Mapping[str, str] = field(default_factory=dict)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Splits the plan: booleans are leaves, groups are not."""
        # Groups and choices are static: a plan is traced anew if they change, not if its numbers
        # do.
        names = tuple(self.keep)
        keys = [(jax.tree_util.DictKey(n), self.keep[n]) for n in names]
        return keys, (names, self.channels, tuple(sorted(self.crossed.items())))

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> Plan:
        """Puts it together again."""
        names, channels, crossed = aux
        return cls(dict(zip(names, children, strict=True)), channels, dict(crossed))

    @property
    def by_dimension(self) -> dict[dependencies.Dimension, Any]:
        """The indices kept of every dimension that loses some."""
        ids = {g.name: d for g, d in zip(self.channels, self.channels.dimensions, strict=True)}
        return {ids[name]: keep for name, keep in self.keep.items()}

    @property
    def gates(self) -> dict[str, Any]:
        """The groups whose channels are multiplied by numbers."""
        return {name: keep for name, keep in self.keep.items() if not _is_boolean(keep)}

    def above(self, threshold: Any = 0.0) -> Plan:
        """Returns the plan that keeps the channels whose gates lie above a threshold.

        Args:
            threshold: A number. Booleans stay what they are.
        """
        keep = {
            name: where if _is_boolean(where) else jnp.asarray(where) > threshold
            for name, where in self.keep.items()
        }
        return Plan(keep, self.channels, self.crossed)

    def concrete(self) -> dict[dependencies.Dimension, np.ndarray]:
        """Returns the plan as concrete numbers.

        Raises:
            PlanError: It is traced or holds gates, removes all channels of a group, or some of a
                held one, or is about a group that there isn't; or it lets channels count as zeros
                where a statistic reads something else.
        """
        groups = {group.name: group for group in self.channels}
        masks = {}
        for name in self.keep:
            if name not in groups:
                raise dependencies.PlanError(
                    f"the model has no group {name!r}; there are {list(groups)}"
                )
        for (name, keep), dimension in zip(self.keep.items(), self.by_dimension, strict=True):
            if not _is_boolean(keep):
                raise dependencies.PlanError(
                    f"the channels of {name!r} are multiplied by numbers, which neither keep nor "
                    "remove them: give plan.above(threshold), or use masked(f, plan)"
                )
            if isinstance(keep, jax.core.Tracer):
                raise dependencies.PlanError(
                    f"the channels of {name!r} are traced, but shapes have to be known: make the "
                    "plan outside of jit, or use masked(f, plan)"
                )
            masks[dimension] = where = np.asarray(keep).astype(bool)
            group = groups[name]
            if where.shape != (group.size,):
                raise dependencies.PlanError(
                    f"{name!r} has {group.size} channels, the plan {where.shape}: give one per "
                    "channel; what a reshape splits has groups for its factors"
                )
            if not where.any():
                makers = f" (made by {', '.join(group.sites)})" if group.sites else ""
                raise dependencies.PlanError(
                    f"the plan removes all channels of {name!r}{makers}; keep one at least"
                )
            if group.held and not where.all():
                raise dependencies.PlanError(group.refusal)
        dependencies.check_crossed(groups, self.crossed)
        return masks

    @property
    def kept(self) -> dict[str, tuple[np.ndarray, ...]]:
        """Which indices stay of each axis of each parameter and statistic, by its path.

        Raises:
            PlanError: It can't be carried out.
        """
        keep = self.concrete()
        return {
            path: tuple(dependencies.kept(axis, keep) for axis in axes)
            for path, axes in self.channels.leaves.items()
        }

    def shrink(self, tree: Any) -> Any:
        """Returns a tree of the model's shapes without what is removed.

        Args:
            tree: Parameters, running statistics, an optimizer's state, gradients or a posterior of
                `Gaussian`: leaves are known by the last parts of their paths.

        Returns:
            A tree of the same structure; leaves that are none of the model's stay as they are.

        Raises:
            PlanError: A leaf has a parameter's name and another shape.
        """
        cut = self.kept

        def shrunk(path: Any, leaf: Any) -> Any:
            name = self.channels.find(leaf_path(path))
            if name is None or not hasattr(leaf, "shape"):
                return leaf
            shape = tuple(axis.size for axis in self.channels.leaves[name])
            if tuple(leaf.shape) != shape:
                if not leaf.shape:
                    return leaf  # a number kept per parameter
                raise dependencies.PlanError(
                    f"{leaf_path(path)} has shape {tuple(leaf.shape)}, but the plan is of a model "
                    f"whose {name} has shape {shape}"
                )
            return _rectangle(leaf, cut[name])

        return jax.tree_util.tree_map_with_path(shrunk, tree)

    def check_small(self, tree: Any) -> None:
        """Checks that the leaves of a tree have the shapes that the plan leaves.

        Raises:
            PlanError: One has another; the message says how to get the right one.
        """
        kept = self.kept
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = self.channels.find(leaf_path(path))
            if name is None or not jnp.shape(leaf):
                continue
            left = tuple(int(where.sum()) for where in kept[name])
            if tuple(jnp.shape(leaf)) != left:
                raise dependencies.PlanError(
                    f"{name} has shape {tuple(jnp.shape(leaf))}, but what the plan leaves of it "
                    f"has {left}: give plan.shrink(params)"
                )

    def mask(self, tree: Any) -> Any:
        """Returns a tree of the model's shapes, zero where entries are removed; may be traced.

        Gates multiply channels, not parameters, and play no part here.
        """
        keep = {d: k for d, k in self.by_dimension.items() if _is_boolean(k)}

        def masked(path: Any, leaf: Any) -> Any:
            name = self.channels.find(leaf_path(path))
            axes = self.channels.leaves.get(name, ()) if name else ()
            if tuple(axis.size for axis in axes) != tuple(jnp.shape(leaf)):
                return leaf
            for i, axis in enumerate(axes):
                where = _traced_indices(axis, keep)
                if where is not None:
                    shape = [1] * len(axes)
                    shape[i] = -1
                    # A selection, not a product: zero times an infinite weight would be NaN.
                    leaf = jnp.where(where.reshape(shape), leaf, jnp.zeros_like(leaf))
            return leaf

        return jax.tree_util.tree_map_with_path(masked, tree)

    @property
    def table(self) -> Table:
        """A row per group: its channels, and how many are kept."""
        sizes = {group.name: group.size for group in self.channels}
        rows = []
        for name, keep in self.keep.items():
            left = "traced" if isinstance(keep, jax.core.Tracer) else f"{np.sum(keep):.4g}"
            rows.append((name, str(sizes[name]), left))
        return Table(("group", "channels>", "kept>"), rows)

    def __repr__(self) -> str:
        return str(self.table)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it as text (JSON): the kept channels of each group and the model's shapes.

        Raises:
            PlanError: It can't be carried out.
        """
        write_atomically(path, self.text())
        return Path(path)

    def text(self) -> str:
        """Returns what `save` writes.

        Raises:
            PlanError: It can't be carried out.
        """
        self.concrete()
        record = {
            "format": _FORMAT,
            "shapes": _shapes(self.channels),
            "keep": {n: np.flatnonzero(k).tolist() for n, k in self.keep.items()},
            "crossed": dict(self.crossed),
        }
        return json.dumps(record, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str], channels: dependencies.Channels) -> Plan:
        """Reads a plan for a model.

        Args:
            path: File that `save` wrote.
            channels: The model's groups, as `jaxeff.channels` reads them.

        Raises:
            PlanError: The file is damaged, no plan, or of another model.
            FileNotFoundError: There is none.
        """
        return cls.from_text(Path(path).read_bytes(), channels, str(path))

    @classmethod
    def from_text(
        cls, text: bytes | str, channels: dependencies.Channels, path: str = "the text"
    ) -> Plan:
        """Makes a plan of text that has been read already; errors name `path`."""
        try:
            record = json.loads(text)
            if record["format"] != _FORMAT:
                raise dependencies.PlanError(
                    f"{path} is no plan of this version ({record['format']!r})"
                )
            # Everything is read inside of the try: a file may be cut short or edited by hand.
            shapes = dict(record["shapes"])
            chosen = {name: [int(i) for i in indices] for name, indices in record["keep"].items()}
            crossed = {str(name): str(choice) for name, choice in record.get("crossed", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, dependencies.PlanError):
                raise
            raise dependencies.PlanError(f"{path} is no plan, or damaged: {error}") from error
        ours = _shapes(channels)
        if shapes != ours:
            other = sorted({k for k in {*shapes, *ours} if shapes.get(k) != ours.get(k)})
            raise dependencies.PlanError(
                f"{path} is the plan of another model; these differ: {other[:4]}"
            )
        sizes = {group.name: group.size for group in channels}
        keep = {}
        for name, indices in chosen.items():
            if name not in sizes:
                raise dependencies.PlanError(f"{path}: the model has no group {name!r}")
            keep[name] = np.isin(np.arange(sizes[name]), indices)
            if keep[name].sum() != len(indices):
                raise dependencies.PlanError(
                    f"{path}: {name!r} has channels 0 to {sizes[name] - 1} only"
                )
        plan = cls(keep, channels, crossed)
        plan.concrete()
        return plan


def _rectangle(leaf: Any, cut: Sequence[np.ndarray]) -> Any:
    """Takes what each axis keeps of an array."""
    if all(where.all() for where in cut):
        return leaf
    # On the host, where an array lies on one device: each shape and axis would be compiled for.
    at_hand = isinstance(leaf, jax.Array) and is_concrete(leaf) and len(leaf.devices()) == 1
    at_hand = at_hand and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
    rest = np.asarray(leaf) if at_hand else leaf
    for i, where in enumerate(cut):
        if not where.all():
            rest = rest[(slice(None),) * i + (np.flatnonzero(where),)]
    return jax.device_put(rest, leaf.sharding if leaf.committed else None) if at_hand else rest


def _is_boolean(keep: Any) -> bool:
    """Returns whether channels are kept or removed; arrays of anything else multiply them."""
    return bool(jnp.result_type(keep) == jnp.bool_)


def _shapes(channels: dependencies.Channels) -> dict[str, list[int]]:
    return {path: [axis.size for axis in axes] for path, axes in channels.leaves.items()}


def _traced_indices(axis: dependencies.Axis, keep: Mapping[dependencies.Dimension, Any]) -> Any:
    """Does what `kept` does for traced booleans; None where nothing is removed."""
    axis = dependencies.resolve_axis(axis)
    if isinstance(axis, dependencies.Dimension):
        mask = keep.get(axis)
        return None if mask is None else jnp.asarray(mask)
    parts = [_traced_indices(part, keep) for part in axis.parts]
    if all(part is None for part in parts):
        return None
    full = [
        jnp.ones(axis_part.size, bool) if part is None else part
        for axis_part, part in zip(axis.parts, parts, strict=True)
    ]
    if isinstance(axis, dependencies.Concatenation):
        return jnp.concatenate(full)
    combined = full[0]
    for part in full[1:]:
        combined = (combined[:, None] & part[None]).reshape(-1)
    return combined


PLAN, NUMBERS = "plan.json", "params.safetensors"


@validate(plan=instance_of(Plan), small=parameter_tree)
def save_pruned(folder: str | os.PathLike[str], plan: Plan, small: Any) -> Path:
    """Writes a smaller model, replacing one that is there.

    The folder holds `plan.json`, to be read by people, and `params.safetensors`, which says which
    plan it belongs to. The code of the model isn't kept: whoever loads it has `f`. The folder
    appears whole or not at all; one that holds something else isn't overwritten.

    Args:
        folder: Folder of the model; made when missing.
        plan: Channels that were kept.
        small: A tree of what it leaves: parameters, with running statistics or an optimizer's state
            where these are to be kept as well.

    Raises:
        PlanError: The plan can't be carried out, or a leaf has another shape than it leaves.
        FileExistsError: Something else is in the folder.
    """
    text = plan.text()
    plan.check_small(small)
    with atomic_folder(Path(folder), PLAN, _listed) as temporary:
        # The digest ties the numbers to their plan: two files can be replaced one at a time.
        save_pytree(temporary / NUMBERS, small, {"plan": _digest(text)})
        write_atomically(temporary / PLAN, text)
    return Path(folder)


@validate(channels=instance_of(dependencies.Channels), like=parameter_tree)
def load_pruned(
    folder: str | os.PathLike[str], channels: dependencies.Channels, like: Any
) -> tuple[Plan, Any]:
    """Reads a smaller model.

    Args:
        folder: Folder that `save_pruned` wrote.
        channels: The groups of the whole model, as `jaxeff.channels` reads them.
        like: A tree of the whole model's shapes, of the structure that was saved; only shapes
            matter.

    Returns:
        The plan, and what it leaves.

    Raises:
        FileNotFoundError: There is none.
        PlanError: The plan is damaged, or of another model, or the numbers belong to another plan.
        CheckpointError: The numbers are damaged, or of another structure.
    """
    text = (Path(folder) / PLAN).read_bytes()
    plan = Plan.from_text(text, channels, str(Path(folder) / PLAN))
    path = Path(folder) / NUMBERS
    if load_metadata(path).get("plan") != _digest(text.decode()):
        raise dependencies.PlanError(
            f"{path} belongs to another plan than {Path(folder) / PLAN}; one of them has been "
            "replaced."
        )
    return plan, load_pytree(path, jax.eval_shape(plan.shrink, like))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _listed(content: bytes) -> Iterable[str]:
    """Returns the other files of a plan's folder."""
    record = json.loads(content)
    if not isinstance(record, dict) or "keep" not in record:
        raise ValueError("it is no plan")
    return [NUMBERS]
