"""`Plan`: which channels of a model stay, and what that makes of trees of its shapes.

A plan is a pytree whose leaves are booleans, one array per group: many plans are one axis more, so
a `vmap` over plans evaluates them all in one program (`masked`). It belongs to the model it was
made for, by the shapes of its parameters, and is saved as text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.pruning.channels import Channels, leaf_path
from jaxeff.pruning.dimensions import Axis, Concatenation, Dimension, kept, resolve
from jaxeff.pruning.refusals import PlanError
from jaxeff.store.writing import write_whole
from jaxeff.tables import Table

_FORMAT = "jaxeff-plan-1"


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, repr=False)
class Plan:
    """What stays of every group.

    Attributes:
        keep: By group, an array of booleans `[channels]`; groups that lose nothing may be left out.
        channels: The groups that it is about.
    """

    keep: dict[str, Any]
    channels: Channels

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """The booleans are leaves, the groups are not."""
        names = tuple(self.keep)
        keys = [(jax.tree_util.DictKey(n), self.keep[n]) for n in names]
        return keys, (names, self.channels)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> Plan:
        """Puts it together again."""
        names, channels = aux
        return cls(dict(zip(names, children, strict=True)), channels)

    @property
    def by_dimension(self) -> dict[Dimension, Any]:
        """What stays of every dimension that loses something."""
        ids = {g.name: d for g, d in zip(self.channels, self.channels.dimensions, strict=True)}
        return {ids[name]: keep for name, keep in self.keep.items()}

    def concrete(self) -> dict[Dimension, np.ndarray]:
        """The same as numbers known now.

        Raises:
            PlanError: It is traced, removes all channels of a group, or some of a held one.
        """
        groups = {group.name: group for group in self.channels}
        found = {}
        for (name, keep), dimension in zip(self.keep.items(), self.by_dimension, strict=True):
            if isinstance(keep, jax.core.Tracer):
                raise PlanError(
                    f"the channels of {name!r} are traced, but shapes have to be known: make the "
                    "plan outside of jit, or use masked(f, plan)"
                )
            found[dimension] = where = np.asarray(keep).astype(bool)
            group = groups[name]
            if where.shape != (group.size,):
                raise PlanError(f"{name!r} has {group.size} channels, the plan {where.shape}")
            if not where.any():
                raise PlanError(f"the plan removes all channels of {name!r}; keep one at least")
            if group.held and not where.all():
                raise PlanError(group.refusal)
        return found

    def shrink(self, tree: Any) -> Any:
        """A tree of the model's shapes without what is removed.

        Args:
            tree: Parameters, running statistics, an optimizer's state, gradients or a posterior of
                `Gaussian`: leaves are known by the last parts of their paths.

        Returns:
            A tree of the same structure; leaves that are none of the model's stay as they are.

        Raises:
            PlanError: A leaf has a parameter's name and another shape.
        """
        keep = self.concrete()
        cut = {
            path: tuple(kept(axis, keep) for axis in axes)
            for path, axes in self.channels.leaves.items()
        }

        def shrunk(path: Any, leaf: Any) -> Any:
            name = self.channels.find(leaf_path(path))
            if name is None or not hasattr(leaf, "shape"):
                return leaf
            shape = tuple(axis.size for axis in self.channels.leaves[name])
            if tuple(leaf.shape) != shape:
                if not leaf.shape:
                    return leaf  # a number kept per parameter
                raise PlanError(
                    f"{leaf_path(path)} has shape {tuple(leaf.shape)}, but the plan is of a model "
                    f"whose {name} has shape {shape}"
                )
            for i, where in enumerate(cut[name]):
                if not where.all():
                    leaf = leaf[(slice(None),) * i + (np.flatnonzero(where),)]
            return leaf

        return jax.tree_util.tree_map_with_path(shrunk, tree)

    def mask(self, tree: Any) -> Any:
        """A tree of the model's shapes with zeros where entries are removed; it may be traced."""
        keep = self.by_dimension

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
                    leaf = jnp.where(where.reshape(shape), leaf, jnp.zeros_like(leaf))
            return leaf

        return jax.tree_util.tree_map_with_path(masked, tree)

    @property
    def table(self) -> Table:
        """What every group loses."""
        sizes = {group.name: group.size for group in self.channels}
        rows = []
        for name, keep in self.keep.items():
            left = "traced" if isinstance(keep, jax.core.Tracer) else str(int(np.sum(keep)))
            rows.append((name, str(sizes[name]), left))
        return Table(("group", "channels>", "kept>"), rows)

    def __repr__(self) -> str:
        return str(self.table)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it as text (JSON): the kept channels of each group and the model's shapes."""
        self.concrete()
        text = {
            "format": _FORMAT,
            "shapes": _shapes(self.channels),
            "keep": {n: np.flatnonzero(k).tolist() for n, k in self.keep.items()},
        }
        write_whole(path, json.dumps(text, indent=1))
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], channels: Channels) -> Plan:
        """Reads a plan for a model.

        Args:
            path: What `save` wrote.
            channels: The model's groups, as `jaxeff.channels` reads them.

        Raises:
            PlanError: The file is damaged, no plan, or of another model.
            FileNotFoundError: There is none.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if found["format"] != _FORMAT:
                raise PlanError(f"{path} is no plan of this version ({found['format']!r})")
            chosen, shapes = dict(found["keep"]), dict(found["shapes"])
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise PlanError(f"{path} is no plan, or damaged: {error}") from error
        ours = _shapes(channels)
        if shapes != ours:
            other = sorted({k for k in {*shapes, *ours} if shapes.get(k) != ours.get(k)})
            raise PlanError(f"{path} is the plan of another model; these differ: {other[:4]}")
        sizes = {group.name: group.size for group in channels}
        keep = {}
        for name, indices in chosen.items():
            if name not in sizes:
                raise PlanError(f"{path}: the model has no group {name!r}")
            keep[name] = np.isin(np.arange(sizes[name]), indices)
            if keep[name].sum() != len(indices):
                raise PlanError(f"{path}: {name!r} has channels 0 to {sizes[name] - 1} only")
        plan = cls(keep, channels)
        plan.concrete()
        return plan


def _shapes(channels: Channels) -> dict[str, list[int]]:
    return {path: [axis.size for axis in axes] for path, axes in channels.leaves.items()}


def _traced_indices(axis: Axis, keep: Mapping[Dimension, Any]) -> Any:
    """`kept` for booleans that may be traced; None where nothing is removed."""
    axis = resolve(axis)
    if isinstance(axis, Dimension):
        found = keep.get(axis)
        return None if found is None else jnp.asarray(found)
    parts = [_traced_indices(part, keep) for part in axis.parts]
    if all(part is None for part in parts):
        return None
    full = [
        jnp.ones(axis_part.size, bool) if part is None else part
        for axis_part, part in zip(axis.parts, parts, strict=True)
    ]
    if isinstance(axis, Concatenation):
        return jnp.concatenate(full)
    whole = full[0]
    for part in full[1:]:
        whole = (whole[:, None] & part[None]).reshape(-1)
    return whole
