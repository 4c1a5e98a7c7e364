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

`kernel_calls` attributes kernels to layers. A kernel belongs to the layer whose weights it reads,
whatever the compiler fused into it or laid out anew; one that reads no weights (a pooling, a
conversion) to the layer before it.

`channel_multiple(target)` is the number of channels that a processor's kernels divide by.

```python
from jaxeff_export import channel_multiple

from jaxeff.pruning import Prune

spec = {"*:linear": Prune(0.5, round_to=channel_multiple("cortex-m7"))}
assert channel_multiple("cortex-a72") == 4
```

What a layer keeps are the results of its kernel and the inputs of the next one: results lie side by
side in a vector, inputs are multiplied a group at a time. Channels that fill neither cost what full
ones do.
"""

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxeff.core import input_batch, one_of, validate
from jaxeff.search import Candidate, LatencyError
from jaxeff_export.bundle import Bundle, NamedTarget, lift
from jaxeff_export.compiler import Machine, compilation_target, fused_kernels
from jaxeff_export.compiler.passes import sources_of
from jaxeff_export.latency._measured import compiled
from jaxeff_export.operators.integer import dot_of
from jaxeff_export.targets import is_microcontroller, resolve_target, tvm_target

_BETWEEN = re.compile(r"'\]\['")
_REST = re.compile(r"\['rest'\]\['(\d+)'\]$")


@dataclass(frozen=True)
class TimedCall:
    """A call of a kernel.

    Attributes:
        kernel: The name of the kernel in the library.
        layer: Number of the layer among the given ones.
    """

    kernel: str
    layer: int


def kernel_calls(
    bundle: Bundle, layers: Sequence[str], leaves: Sequence[str] = ()
) -> tuple[TimedCall, ...]:
    """Lists the kernels that a bundle calls, in order, with their layers.

    Args:
        bundle: A deployed model.
        layers: Sites, as the paths of their parameters begin.
        leaves: Paths of the model's parameters, if it was converted to codes: what stays in float
            is numbered there.
    """
    # The bundle's compilation is repeated up to its kernels: names and order are deterministic.
    example, target = bundle.example, NamedTarget.of_manifest(bundle.manifest)
    lifted = lift(example, target)
    count = len(example.bound)
    names = [_named(spec.name, leaves) for spec in example.artifact.inputs[:count]]
    owners = [_owner(name, layers) for name in names]
    # Derived arrays (packed or transposed weights) belong to the layer of their parameters.
    if lifted.derive is not None:
        derive = lifted.derive["main"]
        known = dict(zip(derive.params, owners, strict=True))
        sources = sources_of(derive, count)
        derived = _values(derive)
        for field in derived.fields:
            owners.append(_first(known[v] for v in sources.get(field) or ()))
    main = fused_kernels(lifted.main, compilation_target(target.settings))["main"]
    operands = len(lifted.operands)
    # Later parameters of ``main`` are data, which belong to no layer.
    known = {v: owners[i] for v, i in zip(main.params, lifted.operands, strict=False)}
    sources = sources_of(main, operands)
    timed: list[TimedCall] = []
    last = 0
    for binding in main.body.blocks[0].bindings:
        value = binding.value
        called = getattr(getattr(value, "op", None), "name", "")
        if called != "relax.call_tir" or sources.get(binding.var) is not None:
            continue  # a view, or what depends on parameters alone
        read = [v for a in value.args[1].fields for v in sources.get(a) or ()]
        # A kernel that was fused of two layers' work reads weights of both; the first one owns it.
        layer = _first(known[v] for v in read)
        last = last if layer is None else layer
        timed.append(TimedCall(str(value.args[0].name_hint), last))
    return tuple(timed)


def _values(function: Any) -> Any:
    """Returns the tuple that a function returns."""
    values = {b.var: b.value for b in function.body.blocks[0].bindings}
    result = function.body.body
    return values.get(result, result)


def _named(name: str, leaves: Sequence[str]) -> str:
    """Finds the path of a parameter that was left in float."""
    rest = _REST.search(name)
    return leaves[int(rest[1])] if rest and leaves else name


def _owner(name: str, layers: Sequence[str]) -> int | None:
    """Finds the layer that an array's path names; of several the longest name."""
    path = "/" + _BETWEEN.sub("/", name).replace("['", "/")
    # Whole path components: `conv1` must not claim the weights of `conv10`.
    fitting = [i for i, layer in enumerate(layers) if f"/{layer}/" in path]
    return max(fitting, key=lambda i: len(layers[i]), default=None)


def _first(layers: Any) -> int | None:
    return next((each for each in layers if each is not None), None)


@validate(inputs=input_batch, of=one_of("cycles", "instructions", "ram", "flash"))
def modelled_latency(
    *inputs: Any,
    target: str | Mapping[str, Any] = "cortex-a72",
    of: Literal["cycles", "instructions", "ram", "flash"] = "cycles",
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

    Returns:
        The latency, in cycles of one core, or what else was asked for. It raises `LatencyError`
        where a candidate can't be compiled, `ToolchainError` where llvm-mca isn't installed.
    """

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
            return sum(c.instructions if of == "instructions" else c.total or 0.0 for c in calls_of)
        if of == "instructions":
            raise LatencyError(
                f"instructions are counted on microcontrollers, not on {bundle.manifest.machine}; "
                'ask for of="cycles"'
            )
        cycles = {loop.name: loop.total for loop in bundle.model()}
        calls = kernel_calls(bundle, candidate.space.names)
        return sum(cycles.get(call.kernel) or 0.0 for call in calls)

    return latency


def channel_multiple(target: str | Mapping[str, Any]) -> int:
    """Computes the multiple of channels that fills a processor's vectors, of codes and of floats.

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
