"""`packed`: members of a narrower network, so that all of them cost about what one did.

```python
import jax
import optax

import jaxeff
from jaxeff.ensembles import member_loss, packed
from jaxeff.nn import small_classifier
from jaxeff.training import fit

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
g, members = packed(key, f, params, x, 4, width=2.0)
result = fit(key, member_loss(g), members, (x, y), optimizer=optax.adam(1e-2), epochs=2,
             batch_size=32)
logits = g(result.params, x)                            # [members, batch, classes]
jaxeff.cost(g, members, x[:1]).macs, jaxeff.cost(f, params, x[:1]).macs
```

Each of `count` members has `width / count` of the network's hidden channels, and all are computed
as one program, a convolution with members as a grouped one: a Packed-Ensemble (Laurent et al. 2023,
arXiv:2210.09184) without further groups within a member. Between hidden layers it costs
`width**2 / count` networks. Narrowing is that of `jaxeff.pruned`, so it works for any network that
can be pruned; the members start anew.

Sharp edge: a share of channels is rounded up, so narrow layers cost more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import PRNGKeyArray

from jaxeff.core import (
    check_function,
    check_key,
    check_params,
    input_batch,
    positive,
    static_integer,
    validate,
)
from jaxeff.ensembles._ensemble import Ensemble, ensemble
from jaxeff.ensembles._members import Members
from jaxeff.pruning import Prune, prune_plan, pruned


@validate(x=input_batch, count=static_integer(), width=positive)
def packed(
    key: PRNGKeyArray, f: Callable[..., Any], params: Any, x: Any, count: int, *, width: float = 2.0
) -> tuple[Ensemble, Any]:
    """Makes an ensemble of narrower networks.

    Args:
        key: Random key; members start from it, drawn as `Members` says.
        f: `f(params, x)`.
        params: The parameters of `f`: shapes, and how members' values are distributed.
        x: Inputs; shapes are enough.
        count: Number of members.
        width: Channels of all members together, in multiples of the network's.

    Returns:
        The function and its parameters, as `jaxeff.ensemble` returns them.

    Raises:
        PlanError: The network can't be pruned.
        ValueError: The count is below one.
    """
    check_key("packed: key", key)
    check_function("packed: f", f)
    check_params("packed: params", params)
    members: dict[str, Members | None] = {"*": Members(count)}
    if width >= count:  # as wide as the network: a deep ensemble
        return ensemble(key, f, params, members)  # type: ignore[return-value]
    plan = prune_plan(f, params, x, {"*:linear": Prune(1 - width / count)})
    return ensemble(key, pruned(f, plan), plan.shrink(params), members)  # type: ignore[return-value]
