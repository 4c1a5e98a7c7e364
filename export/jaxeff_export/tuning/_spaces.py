"""What is tuned: the kernels of a module, and the sources of candidates for them.

``tiles`` is the space of this project's own schedules: every register tile that could be worth a
measurement, in both orders of the loops around it, the most promising first. It knows joint
kernels and takes seconds to minutes.
``metaschedule`` is TVM's general space with its evolutionary search, for kernels that the own
schedules do not cover, given hours of time. It tiles no kernel with several results.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule
from tvm.target import Target

from jaxeff import program
from jaxeff_export import compiler
from jaxeff_export.compiler.tir import contains, is_contraction
from jaxeff_export.schedules import TuningError

_POPULATION = 64  # more cost seconds a batch, and without a cost model they are drawn by chance
_SERIAL = 4


class CandidateSource(Protocol):
    """A source of candidates that may learn from measurements."""

    def propose(self, count: int) -> list[Schedule]:
        """Proposes at most `count` new candidates; none when there are no more."""

    def learn(self, seconds: Sequence[float | None]) -> None:
        """Takes the times of the last proposal; None for a candidate that failed."""


class TileCandidates:
    """This project's schedule of a kernel, with every tile worth a measurement.

    Args:
      kernel: the kernel.
      machine: the processor.
      is_new: tells whether a candidate was not met before, and remembers it.
    """

    def __init__(
        self,
        kernel: compiler.UnscheduledKernel,
        machine: compiler.Machine,
        is_new: Callable[[Schedule], bool],
    ) -> None:
        self._candidates = _tiled(kernel, machine, is_new)

    def propose(self, count: int) -> list[Schedule]:
        """Proposes the next candidates, the most promising first."""
        return list(itertools.islice(self._candidates, count))

    def learn(self, seconds: Sequence[float | None]) -> None:
        """Does nothing: the order is fixed."""


class PostOrderApply:
    """MetaSchedule's general space and evolutionary search, without a learned cost model.

    Args:
      kernel: the kernel.
      target: target that kernels are compiled for.
      database: the measurements so far; the best are parents of new candidates.
      trials: number of candidates proposed in all.
      batch: number of candidates proposed at once.
    """

    def __init__(
        self,
        kernel: compiler.UnscheduledKernel,
        target: Target,
        database: ms.database.Database,
        trials: int,
        batch: int,
    ) -> None:
        search = ms.search_strategy.EvolutionarySearch(
            population_size=_POPULATION, init_min_unmeasured=batch
        )
        self._context = ms.TuneContext(
            kernel.module,
            target=target,
            space_generator=ms.space_generator.PostOrderApply(),
            search_strategy=search,
            task_name=kernel.name,
            # A later session draws other candidates than the one that it continues.
            rand_state=1 + len(database),
        )
        self._context.pre_tuning(trials, batch, database=database)
        self._proposed: list[ms.MeasureCandidate] = []

    def propose(self, count: int) -> list[Schedule]:
        """Proposes the next generation."""
        self._proposed = list(self._context.generate_measure_candidates() or [])[:count]
        return [candidate.sch for candidate in self._proposed]

    def learn(self, seconds: Sequence[float | None]) -> None:
        """Reports the generation's times to the search."""
        results = [
            ms.runner.RunnerResult([s], None) if s else ms.runner.RunnerResult(None, "failed")
            for s in seconds
        ]
        self._context.notify_runner_results(self._proposed, results)


def tiles(
    extents: Sequence[int], machine: compiler.Machine, results: int, together: int | None = None
) -> list[compiler.RegisterTile]:
    """Lists the tiles worth a measurement, the most promising first.

    A tile should fill the registers, and load little for each multiplication: so many rows and so
    many vectors that their sum is small for their product.

    `results` outputs are computed at once, each with registers of its own; `together` columns of
    the weights lie together, if not all of them.
    """
    *outer, last = extents
    register_tiles = []
    for width in (d for d in compiler.divisors(last) if d <= machine.lanes):
        for vectors in compiler.divisors(last // width):
            # A tile must not reach from one block of columns into the next.
            if together is not None and together % (vectors * width):
                continue
            # An upper bound: operands need registers too, but measurements will tell.
            room = machine.registers // (vectors * results)
            for rows in itertools.product(*(_at_most(compiler.divisors(n), room) for n in outer)):
                if math.prod(rows) <= room:
                    register_tiles.append(compiler.RegisterTile(list(rows), vectors, width))
    return sorted(
        register_tiles, key=lambda tile: (_loads(tile), -tile.rows[-1] if tile.rows else 0)
    )


def _decisions(
    extents: Sequence[int], machine: compiler.Machine, results: int, together: int | None
) -> Iterator[tuple[compiler.RegisterTile, int]]:
    """Yields tiles, each with both orders of the outer loops and the cores that share the work.

    The most promising tiles are tried on one core too, for kernels that are not worth a thread.
    """
    for rank, tile in enumerate(tiles(extents, machine, results, together)):
        orders = [tile]
        # A single tile across has no other order of loops.
        if tile.columns < extents[-1]:
            orders.append(dataclasses.replace(tile, columns_first=True))
        for ordered in orders:
            yield ordered, machine.cores
            if machine.cores > 1 and rank < _SERIAL:
                yield ordered, 1


def _loads(tile: compiler.RegisterTile) -> float:
    """Estimates the loads per product that a tile computes."""
    rows = math.prod(tile.rows)
    return (rows + tile.vectors) / (rows * tile.columns)


def _at_most(numbers: Sequence[int], limit: int) -> list[int]:
    return [n for n in numbers if n <= limit]


def _tiled(
    kernel: compiler.UnscheduledKernel,
    machine: compiler.Machine,
    is_new: Callable[[Schedule], bool],
) -> Iterator[Schedule]:
    """Yields a kernel's schedules, one per tile; all contractions of a kernel are tiled alike."""
    asked: list[tuple[list[int], int, int | None]] = []

    def first(
        extents: list[int], _: compiler.Machine, results: int, together: int | None
    ) -> compiler.RegisterTile:
        asked.append((extents, results, together))
        return compiler.RegisterTile([1] * (len(extents) - 1), 1, 1)

    # A first run only asks for the extents: the scheduler alone knows which loops it tiles.
    compiler.schedule_kernel(kernel.function, dataclasses.replace(machine, tiling=first))
    if not asked:
        return
    extents, results, together = asked[0]
    for tile, cores in _decisions(extents, machine, results, together):
        chosen = dataclasses.replace(machine, cores=cores, tiling=lambda *_, tile=tile: tile)
        schedule = compiler.schedule_kernel(kernel.function, chosen)
        if schedule is not None and is_new(schedule):
            yield schedule


def select_kernels(
    mod: tvm.IRModule, include: Sequence[str] | None, exclude: Sequence[str]
) -> list[compiler.UnscheduledKernel]:
    """Selects the kernels of a fused module to tune, each workload once.

    `include` are glob patterns, None for the kernels that contract (layers): elementwise kernels
    and pooling are only tuned if they are asked for by name, as MetaSchedule loses much time with
    the former and spoils the latter. Where `exclude` matches a name too, the more specific pattern
    decides (`jaxeff.program`).
    """
    functions = {
        key.name_hint: function
        for key, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and _is_tunable(function)
    }
    targets = [program.Target(name) for name in functions]
    try:
        if include is None:
            chosen = {
                name
                for name, function in functions.items()
                if contains(function.body, s_tir.SBlock, is_contraction)
            }.difference(program.select(exclude, targets, what="kernel"))
        else:
            taken = _verdicts(include, exclude)
            decided = program.deciding_patterns(taken, targets, what="kernel", verdicts=taken)
            chosen = {name for name, pattern in decided.items() if taken[pattern]}
    except program.SpecError as error:
        raise TuningError(str(error)) from error
    if not chosen:
        raise TuningError(
            f"nothing is left to tune; the kernels are {_listed(functions)}, and without patterns "
            "those that multiply and accumulate are tuned"
        )
    # Equal kernels of several layers share a workload, and so one tuning.
    kernels: dict[str, compiler.UnscheduledKernel] = {}
    for name in sorted(chosen):
        kernel = compiler.kernel_of(name, functions[name])
        kernels.setdefault(kernel.workload, kernel)
    return list(kernels.values())


def _is_tunable(function: tirx.PrimFunc) -> bool:
    """Tells whether a kernel takes tensors of known shapes and has no schedule of its own."""
    if "tirx.is_scheduled" in function.attrs:
        return False
    types: list[Any] = [parameter.ty for parameter in function.params]
    return all(
        hasattr(kind, "shape") and all(isinstance(n, tirx.IntImm) for n in kind.shape)
        for kind in types
    )


def _verdicts(include: Sequence[str], exclude: Sequence[str]) -> dict[str, bool]:
    both = set(include).intersection(exclude)
    if both:
        raise TuningError(f"{min(both)!r} is both asked for and left out")
    return dict.fromkeys(include, True) | dict.fromkeys(exclude, False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none with fixed shapes"
