"""Groups of channels beside Torch-Pruning's.

    python -m experiments.pruning.peer

Both libraries read networks of the same wiring (arXiv 2301.12900 is theirs). They are compared by
the partition of the parameters' axes into groups that lose channels together, and by what is left
of multiply-accumulates and parameters when half of every group goes. Where Torch-Pruning can't, the
row says what it said. Where it can, but what it left isn't the network with zeros in the place of
what it took (`their_error`), there is nothing to agree with. Attention is run twice, with its heads
told (`num_heads`) and without.

Here an axis of blocks (heads, groups of a convolution) can lose channels of every block or whole
blocks, which are groups of their own: `more`. There it loses channels of every block, so those are
what is compared. A partition is finer where each of their groups is a union of ours.

PyTorch and Torch-Pruning are optional: `pip install torch torch-pruning`. Without them the rows
hold what jaxeff does alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import jax
import numpy as np

import jaxeff
from experiments import harness as h
from experiments.harness import Report, Row, Run
from experiments.pruning.networks import NAMES, build
from jaxeff.pruning import Channels, Group, Plan, channels, masked, pruned
from jaxeff.pruning.dependencies import Axis, AxisProduct, Dimension, dimensions, resolve

WRONG = 1e-3
"""An error from which on a pruned network isn't the masked one."""
ATTENTION = ("ViT", "grouped queries")
Partition = frozenset[frozenset[tuple[str, int]]]


@dataclass(frozen=True)
class Settings:
    """What is compared."""

    plans: h.Count = 3  # random plans whose pruned network is compared with the masked one


def run(run: Run[Settings]) -> list[Row]:
    """A row per network, and one more where heads are told."""
    missing = [name for name in ("torch", "torch_pruning") if find_spec(name) is None]
    if missing:
        run.say(f"without {' and '.join(missing)}: pip install torch torch-pruning")
    tasks = [(name, told) for name in NAMES for told in (False, True)]
    tasks = [(name, told) for name, told in tasks if name in ATTENTION or not told]

    def compare(task: tuple[str, bool]) -> list[Row]:
        name, told = task
        f, params, x = build(name, run.seed)
        found = channels(f, params, x)
        row = {"network": name, "heads_told": told} | _ours(f, params, x, found, run.settings.plans)
        if not missing:
            row |= _theirs(name, x, found, told)
        return [row]

    return run.each(tasks, compare)


def _ours(f: Any, params: Any, x: np.ndarray, found: Channels, plans: int) -> Row:
    inner = _inner(found)
    half = Plan(
        {g.name: np.arange(g.size) < g.size - g.size // 2 for g in inner},
        found,
        {g.name: "left" for g in inner if g.crossed},  # as in the other library's narrower network
    )
    g, small = pruned(f, half), half.shrink(params)
    rng = np.random.default_rng(0)
    errors = [_error(f, params, x, found, rng) for _ in range(plans)]
    return {
        "groups": len(inner), "more": len(found.free) - len(inner),
        "macs_left": _macs(g, small, x) / _macs(f, params, x),
        "params_left": _size(small) / _size(params), "macs": _macs(f, params, x),
        "params": _size(params), "error_to_masked": max(errors),
    }  # fmt: skip


def _theirs(name: str, x: np.ndarray, found: Channels, told: bool) -> Row:
    from experiments.pruning.with_torch import measure

    theirs, row = measure(name, x, heads=told)
    if any(group.crossed for group in found.free):
        row["their_error"] = None
    relation = _relation(_partition(found), theirs)
    return {"their_groups": len(theirs), "relation": relation, **row}


def _inner(found: Channels) -> list[Group]:
    """The free groups but for those of whole blocks."""
    blocks = {d for axes in found.leaves.values() for axis in axes for d in outer(axis)}
    pairs = zip(found, found.dimensions, strict=True)
    return [group for group, d in pairs if group.free and d not in blocks]


def outer(axis: Axis) -> set[Dimension]:
    """What a product repeats: its factors but for the last."""
    axis = resolve(axis)
    if isinstance(axis, Dimension):
        return set()
    inside = set().union(*map(outer, axis.parts)) if axis.parts else set()
    if isinstance(axis, AxisProduct):
        inside |= {d for part in axis.parts[:-1] for d in dimensions(part)}
    return inside


def _partition(found: Channels) -> Partition:
    """Groups as sets of axes of parameters, counted from the last."""
    weights = {value.path for value in found.program.inputs if value.is_weight}
    return frozenset(
        frozenset(
            (m.path, m.axis - len(found.leaves[m.path])) for m in g.members if m.path in weights
        )
        for g in _inner(found)
    )


def _relation(ours: Partition, theirs: Partition) -> str:
    if ours == theirs:
        return "same"
    unions = [frozenset().union(*(o for o in ours if o <= group)) for group in theirs]
    covered = frozenset().union(*ours) == frozenset().union(*theirs)
    return "finer" if covered and unions == list(theirs) else "other"


def _error(f: Any, params: Any, x: np.ndarray, found: Channels, rng: Any) -> float:
    """Of a random plan's pruned network to the masked one, relative to the largest result."""
    keep = {}
    for group in found.free:
        if not group.crossed:
            keep[group.name] = where = rng.random(group.size) < 0.5
            where[rng.integers(group.size)] = True
    plan = Plan(keep, found)
    ours = jax.jit(pruned(f, plan))(plan.shrink(params), x)
    whole = jax.jit(masked(f, plan))(params, x)
    return float(np.abs(ours - whole).max() / np.abs(whole).max())


def _macs(f: Any, params: Any, x: np.ndarray) -> int:
    """Of layers with weights; products of activations are no layer in PyTorch."""
    rows = jaxeff.cost(f, params, x).layers
    return sum(row.macs for row in rows if row.weights)


def _size(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def named(report: Report) -> list[Row]:
    """Selects all rows, by the network's name and what is told of it."""
    return [
        row | {"name": f"{row['network']}{', heads told' if row['heads_told'] else ''}"}
        for row in report.rows
    ]


def comparable(report: Report) -> list[Row]:
    """Selects the networks of which Torch-Pruning takes what it says that it takes."""
    return [
        row
        for row in named(report)
        if "their_groups" in row
        and not row["their_failure"]
        and (row["their_error"] or 0) <= WRONG  # beyond, it has taken channels for others
    ]


near = partial(h.Rule, lambda left, theirs: abs(left - theirs) < 1e-9)
CLAIMS = (
    h.Claim("{name}: pruned is masked", "error_to_masked", h.below(1e-5), 0.0, named),
    h.Claim(
        "{name}: the groups are {relation}", "groups",
        lambda row, _: row["relation"] in ("same", "finer"), itemgetter("their_groups"),
        comparable,
    ),
    *(
        h.Claim(
            f"{{name}}: {kind} left at a half", f"{kind}_left", near(f"their_{kind}_left"),
            itemgetter(f"their_{kind}_left"), comparable,
        )
        for kind in ("macs", "params")
    ),
)  # fmt: skip
LEFT = h.Bars(
    "name", {"macs_left": "ours", "their_macs_left": "theirs"}, named, axes={"ylabel": "MACs left"}
)
TABLES = (
    h.Listing(
        "groups of channels",
        ("network", "heads_told", "groups", "more", "their_groups", "relation", "their_failure"),
    ),
    h.Listing(
        "half of them gone",
        (
            "network", "heads_told", "macs_left", "their_macs_left", "params_left",
            "their_params_left", "error_to_masked", "their_error",
        ),
    ),
)  # fmt: skip

STUDY = h.Study(
    "pruning.peer",
    __doc__,
    {"fast": Settings(1), "default": Settings(), "full": Settings(10)},
    (run,), CLAIMS, (h.Plot("peer", LEFT, size=(7.5, 3.4)),), TABLES,
    differences=(
        "Torch-Pruning ignores the output layer because it is told to; here outputs are held.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
