"""What is known of a processor without a measurement: modelled cycles, the channels it likes.

`modelled_latency(inputs, target)` are cycles of a candidate by a static model of a core. In a
search it is `search(..., latency=modelled_latency(x[:1], target="cortex-a72"))`.

```python
import shutil

from jaxeff.nn import small_classifier
from jaxeff.search import Candidate, Candidates, SearchSpace
from jaxeff_export import modelled_latency

f, params, (x, y) = small_classifier(32)
space = SearchSpace.read(f, params, x[:1])
candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
cycles = modelled_latency(x[:1], target="cortex-a72")
if shutil.which("llvm-mca"):                             # Debian's package llvm
    assert cycles(Candidate(space.uncompressed, space, candidates.smaller)) > 0
```
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxeff.core import input_batch, one_of, validate
from jaxeff.search import Candidate, LatencyError, Policy
from jaxeff_export.bundle import Bundle, kernel_calls
from jaxeff_export.compiler import Machine
from jaxeff_export.latency._measured import AlternatingTimer, compiled, leaves_of
from jaxeff_export.latency._table import TableLatency
from jaxeff_export.operators.integer import dot_of
from jaxeff_export.targets import is_microcontroller, resolve_target, tvm_target


@validate(inputs=input_batch, of=one_of("cycles", "instructions", "ram", "flash"))
def modelled_latency(
    *inputs: Any,
    target: str | Mapping[str, Any] = "cortex-a72",
    of: Literal["cycles", "instructions", "ram", "flash"] = "cycles",
    nodes: Sequence[int] | None = None,
    folder: str | Path | None = None,
) -> Callable[[Candidate], float]:
    """Makes a latency by the static model of a core (`Bundle.model`): cycles, no measurement.

    The latency sums, over the called kernels, the cycles of their innermost loops, or of loading
    their arrays if that takes longer. Code outside of those loops and kernels unknown to the model
    are left out, so it bounds times from below.

    Args:
        *inputs: An example of what the model reads.
        target: Target whose core is modelled, as in `deploy`.
        of: What a search lowers: cycles, or of a C library (`Bundle.export_c`) the instructions
            that a call executes on a microcontroller, or bytes: of RAM, which are workspace,
            arguments, results and arrays on the stack, or of flash, which are code and parameters.
        nodes: Numbers of channels whose cycles a table keeps by layer, as in `table_latency`. None
            compiles every candidate.
        folder: Folder that keeps the table; None for as long as the object lives.

    Returns:
        The latency, in cycles of one core, or what else was asked for. It raises `LatencyError`
        where a candidate can't be compiled, `ToolchainError` where llvm-mca isn't installed.

    Raises:
        ValueError: A table is asked for something else than cycles, or kept without one.
        CheckpointError: The folder holds the table of another model or target.
    """
    if nodes is not None:
        if of != "cycles":
            raise ValueError(
                f"modelled_latency: a table has cycles, no {of}: leave nodes out, or ask for cycles"
            )
        return ModelledTable(inputs, target, folder, nodes)
    if folder is not None:
        raise ValueError("modelled_latency: a folder keeps a table, which needs nodes: (8, 16)")

    def latency(candidate: Candidate) -> float:
        bundle = compiled(candidate, candidate.policy, inputs, target)
        if of in ("ram", "flash"):
            with tempfile.TemporaryDirectory(prefix="jaxeff-c-") as home:
                sizes = bundle.export_c(Path(home) / "model").sizes
            ram = sizes.workspace + sizes.arrays + sizes.stack
            return float(ram if of == "ram" else sizes.code + sizes.parameters)
        calls_of = bundle.model() if is_microcontroller(bundle.manifest.machine) else ()
        if calls_of:
            # All that is executed, in exact numbers: no kernel has to be found in the bundle.
            counts = (c.instructions if of == "instructions" else c.total for c in calls_of)
            return float(sum(count or 0 for count in counts))
        if of == "instructions":
            raise LatencyError(
                f"instructions are counted on microcontrollers, not on {bundle.manifest.machine}; "
                'ask for of="cycles"'
            )
        return sum(_layer_cycles(bundle, candidate, candidate.policy))

    return latency


class ModelledTable(TableLatency):
    """Modelled cycles that are looked up; made by `modelled_latency` with nodes.

    With `nodes` they are kept by layer, as in `table_latency`: a few dozen candidates are compiled
    whatever a search tries, and the others are sums.

    ```python
    cycles = modelled_latency(x[:1], target="cortex-a72", nodes=(4, 8))
    ```
    """

    _steps = False  # loops that are modelled have no remainders: cycles grow with channels

    def __init__(
        self,
        inputs: tuple[Any, ...],
        target: str | Mapping[str, Any],
        folder: str | Path | None,
        nodes: Sequence[int],
    ) -> None:
        # Nothing runs: cycles are a model's, so that nothing is timed in turns.
        super().__init__(inputs, target, AlternatingTimer("model", 1, 1), folder, nodes, None)

    def _measure(self, candidate: Candidate, policy: Policy) -> list[float]:
        self.fills += 1
        bundle = compiled(candidate, policy, self._inputs, self._target)
        return _layer_cycles(bundle, candidate, policy)


def _layer_cycles(bundle: Bundle, candidate: Candidate, policy: Policy) -> list[float]:
    """Sums the modelled cycles of every layer's kernels."""
    cycles = {loop.name: loop.total for loop in bundle.model()}
    names = candidate.space.names
    # Batch norm that isn't folded is numbered in the bundle: the model knows whose it is.
    leaves = leaves_of(candidate.make(policy).params)
    layers = [0.0] * len(names)
    for call in kernel_calls(bundle.manifest, bundle.artifact, names, leaves):
        layers[call.layers[0]] += cycles.get(call.kernel) or 0.0
    return layers


def channel_multiple(target: str | Mapping[str, Any]) -> int:
    """Computes the multiple of channels that fills a processor's vectors, of codes and of floats.

    `channel_multiple(target)` is the number of channels that a processor's kernels divide by.

    ```python
    from jaxeff_export import channel_multiple

    from jaxeff.pruning import Prune

    spec = {"*:linear": Prune(0.5, round_to=channel_multiple("cortex-m7"))}
    assert channel_multiple("cortex-a72") == 4
    ```

    What a layer keeps are the results of its kernel and the inputs of the next one: results lie
    side by side in a vector, inputs are multiplied a group at a time. Channels that fill neither
    cost what full ones do.

    Args:
        target: A name (`target_names`) or a TVM target's attributes.

    Returns:
        The least common multiple of the results in a vector of integers, of the inputs that one
        step of an integer product takes, and of the floats in a vector.

    Raises:
        TargetError: There is no such target.
    """
    known = tvm_target(resolve_target(target))
    dot = dot_of(known)
    return math.lcm(dot.lanes, dot.group, Machine.of(known).lanes)
