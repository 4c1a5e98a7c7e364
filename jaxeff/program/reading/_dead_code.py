"""Leaves out what no result of a function depends on, such as loop carries that are never read.

JAX does so for scans and branches, and keeps a `while_loop` as it is. So the while loops of a
function are given to JAX as equations of another primitive, which has a rule here, and become
while loops again afterwards. JAX's own primitive stays as it is for everybody else.
"""

import operator
from collections.abc import Sequence
from itertools import compress
from typing import Any

from jaxeff.core import ClosedJaxpr, Jaxpr, JaxprEqn, rewritten
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.program.ir import While, fixed_point

_while_p = _compat.Primitive("while_with_dead_carries")
_while_p.multiple_results = True


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Leaves out the equations and loop carries that no result depends on.

    Inputs stay, used or not; so do equations with effects.
    """
    jaxpr = _exchanged(closed.jaxpr, p.while_p, _while_p)
    live, _ = _compat.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=_exchanged(live, _while_p, p.while_p))


def _exchanged(jaxpr: Jaxpr, old: Any, new: Any) -> Jaxpr:
    """Returns a jaxpr with one primitive in place of another, at any depth."""
    return rewritten(jaxpr, {old}, lambda eqn: [eqn.replace(primitive=new)])


def _without_dead_carries(
    used: Sequence[bool], eqn: JaxprEqn
) -> tuple[list[bool], JaxprEqn | None]:
    """Drops the carries of a while loop that neither results nor the other carries need.

    Args:
        used: Flags that say which results are read.
        eqn: The loop.

    Returns:
        Which operands it still reads, and what is left of it.
    """
    if eqn.effects:
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    loop = While.of(eqn, eqn.invars)
    test, body = loop.test.jaxpr, loop.body.jaxpr
    first, fixed = len(loop.test_consts), len(loop.consts)
    # The test decides how often the body runs: every result depends on what it reads.
    _, tested = _compat.dce_jaxpr(test, [True])
    live = [*map(operator.or_, used, tested[first:])]
    # A carry that a live one is computed from is live in the iteration before, hence in all.
    live, _ = fixed_point(
        lambda live: (_compat.dce_jaxpr(body, live)[1][fixed:], None), live, operator.or_
    )
    # `instantiate`: both take the live carries, whether they read them or not.
    test, tested = _compat.dce_jaxpr(test, [True], [False] * first + live)
    body, read = _compat.dce_jaxpr(body, live, [False] * fixed + live)
    operands = [*tested[:first], *read[:fixed], *live]
    params = eqn.params | {
        "cond_nconsts": sum(tested[:first]),
        "cond_jaxpr": loop.test.replace(jaxpr=test),
        "body_nconsts": sum(read[:fixed]),
        "body_jaxpr": loop.body.replace(jaxpr=body),
    }
    invars, outvars = [*compress(eqn.invars, operands)], [*compress(eqn.outvars, live)]
    return operands, eqn.replace(invars=invars, outvars=outvars, params=params)


_compat.register_dce_rule(_while_p, _without_dead_carries)
