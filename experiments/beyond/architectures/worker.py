"""Reads architectures of a library in a process of its own: a line of JSON for each column.

python -m experiments.beyond.architectures.worker 240 torchvision resnet18/functional vgg11/pruned

The first number is what a column may cost: seconds of this process on a processor.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# What Keras computes by: read when it is imported.
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax

import jaxeff
from experiments.beyond import trials
from experiments.beyond.architectures.models import build
from experiments.beyond.trials import Cell
from jaxeff import Gaussian, Int, MomentsWarning
from jaxeff.program import trace
from jaxeff.program.ir import OperationFamily
from jaxeff.pruning import PlanError, Prune

LINEAR = "*:linear"
"""Pattern of the sites of all products and convolutions."""


@dataclasses.dataclass(frozen=True)
class Traced(Cell):
    """What became of a column.

    Attributes:
        seconds: Of a processor, those that read the architecture with its first column.
        sites: How many layers it has.
        undescribed: Kinds of its equations that no signature describes.
    """

    seconds: float = 0.0
    sites: int | None = None
    undescribed: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1)
def _read(library: str, name: str) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """Returns the function, and the shapes of its parameters and data: nothing else is kept."""
    model, args = build(library, name)
    f, params = jaxeff.functional(model)
    return f, jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), params), args


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def functional(f: Callable[..., Any], params: Any, args: tuple[Any, ...]) -> Traced:
    """Its layers are found; the number is that of its parameters."""
    program = trace(f, params, *args)
    nodes = [node for layer in program.walk() for node in layer.nodes]
    opaque = OperationFamily.OPAQUE
    unknown = {str(n.eqn.primitive) for n in nodes if n.signature.family is opaque}
    return Traced(
        "right", _size(params), sites=len(program.sites), undescribed=tuple(sorted(unknown))
    )


def integer(f: Callable[..., Any], params: Any, args: tuple[Any, ...]) -> Traced:
    """The share of multiply-accumulates whose weights become codes."""
    codes = jaxeff.integer(f, {LINEAR: Int(8)}, dynamic=True).convert(params, *args)
    sites = {n.removesuffix("/codes") for n in codes.named() if n.endswith("/codes")}
    rows = jaxeff.cost(f, params, *args).layers
    in_codes = sum(r.macs for r in rows if r.site in sites)
    return Traced("right", in_codes / sum(r.macs for r in rows))


def pruned(f: Callable[..., Any], params: Any, args: tuple[Any, ...]) -> Traced:
    """The share of the parameters that is left of half of the channels."""
    kept = ""
    try:
        plan = jaxeff.prune_plan(f, params, args, {LINEAR: Prune(0.5)})
    except PlanError as refusal:
        kept = f"with crossed='keep' after {refusal}"
        plan = jaxeff.prune_plan(f, params, args, {LINEAR: Prune(0.5, crossed="keep")})
    return Traced("right", _size(jax.eval_shape(plan.shrink, params)) / _size(params), kept)


def moments(f: Callable[..., Any], params: Any, args: tuple[Any, ...]) -> Traced:
    """What the moment pass warns of, where every parameter is random."""
    posterior = jax.tree.map(lambda w: Gaussian(w, w), params)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        jax.eval_shape(jaxeff.moments(f), posterior, *args)
    words = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
    return Traced("right", len(words), " ".join(words))


COLUMNS = {column.__name__: column for column in (functional, pruned, integer, moments)}
"""What is tried of each architecture, by name."""


def traced(library: str, name: str, column: str) -> Traced:
    """One column of an architecture, whatever happens."""
    before = time.process_time()
    # What packages print at their import would stand between the lines of JSON.
    with contextlib.redirect_stdout(sys.stderr):
        cell = trials.tried(lambda of: COLUMNS[column](*_read(*of)), (library, name))
    seconds = round(time.process_time() - before, 2)
    entries = {**dataclasses.asdict(cell), "seconds": seconds}
    return Traced(**entries)


def main(arguments: Sequence[str]) -> None:
    """Reads architectures of a library, in order."""
    limit, library, *tasks = arguments

    def rows() -> Iterator[tuple[str, Cell]]:
        for task in tasks:
            trials.allow(float(limit))
            yield task, traced(library, *task.split("/"))

    trials.report(rows())


if __name__ == "__main__":
    trials.work(main)
