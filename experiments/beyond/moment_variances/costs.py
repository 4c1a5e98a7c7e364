"""What every way to a variance costs, over the network itself: XLA's times, and TVM's of one."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jaxeff_export
from jaxeff_export import Bundle

from experiments.contests.tvm import host
from experiments.harness import Row
from experiments.timing import Meter, measure_rounds, metered, ratio
from jaxeff.moment_propagation import is_gaussian, moments

_ALONE, _TVM, _TVM_ALONE = "alone", "tvm", "tvm alone"


def costs_of(
    f: Callable[..., Any],
    posterior: Any,
    x: Any,
    calls: Mapping[str, Callable[[], Any]],
    deployed: str,
    rounds: int,
) -> dict[str, Row]:
    """Processor times of a batch over that of the network with its mean parameters.

    Args:
        f: The network.
        posterior: Of its parameters.
        x: The batch.
        calls: What a user calls, by method.
        deployed: The method that is ``moments(f)``, which TVM compiles too.
        rounds: Interleaved rounds, in which engines and methods take turns.

    Returns:
        By method ``cost``, under XLA; where it is deployed also ``tvm``, and ``tvm_error``, the
        largest deviation of its results there, relative to the largest.
    """
    means = jax.tree.map(lambda v: v.mean if is_gaussian(v) else v, posterior, is_leaf=is_gaussian)
    calls = {**calls, _ALONE: partial(jax.jit(f), means, x)}
    meters = {name: metered(call, time.process_time) for name, call in calls.items()}
    # A quotient of one engine's times each: what a network costs differs between engines.
    bundle = jaxeff_export.deploy(moments(f), (posterior, x), target=host())
    alone = jaxeff_export.deploy(f, (means, x), target=host())
    meters |= {_TVM: _on_processor(bundle), _TVM_ALONE: _on_processor(alone)}
    times = measure_rounds(meters, rounds)
    costs: dict[str, Row] = {
        name: {"cost": ratio(times[name], times[_ALONE])} for name in calls if name != _ALONE
    }
    costs[deployed] |= {
        "tvm": ratio(times[_TVM], times[_TVM_ALONE]),
        "tvm_error": bundle.check().max_relative_error,
    }
    return costs


def _on_processor(bundle: Bundle) -> Meter:
    """Times a bundle where it lies, as `Bundle.benchmark` does, but in processor time."""

    def meter(repeats: int) -> float:
        start = time.process_time()
        bundle.benchmark("local", number=repeats, repeat=1)
        # TVM's evaluator calls once more, before its own clock starts; ours counts that call.
        return (time.process_time() - start) / (repeats + 1)

    return meter
