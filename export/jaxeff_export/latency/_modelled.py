"""`modelled_latency`: cycles of a candidate by a static model of a core, and no measurement.

In a search it is `search(..., latency=modelled_latency(x[:1], target="cortex-a72"))`.

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
    assert cycles(Candidate(space.whole, space, candidates.smaller)) > 0
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxeff.core import input_batch, validate
from jaxeff.search import Candidate
from jaxeff_export.latency._attribution import kernel_calls
from jaxeff_export.latency._turns import compiled


@validate(inputs=input_batch)
def modelled_latency(
    *inputs: Any, target: str | Mapping[str, Any] = "cortex-a72"
) -> Callable[[Candidate], float]:
    """Makes a latency by the static model of a core (`Bundle.model`): cycles, no measurement.

    The latency sums, over the called kernels, the cycles of their innermost loops, or of loading
    their arrays if that takes longer. Code outside of those loops and kernels unknown to the model
    are left out, so it bounds times from below.

    Args:
        *inputs: An example of what the model reads.
        target: Target whose core is modelled, as in `deploy`.

    Returns:
        The latency, in cycles of one core. It raises `LatencyError` where a candidate can't be
        compiled, `ToolchainError` where llvm-mca isn't installed.
    """

    def latency(candidate: Candidate) -> float:
        bundle = compiled(candidate, candidate.policy, inputs, target)
        cycles = {loop.name: loop.total for loop in bundle.model()}
        calls = kernel_calls(bundle, candidate.space.names)
        return sum(cycles.get(call.kernel) or 0.0 for call in calls)

    return latency
