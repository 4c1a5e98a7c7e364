"""Calls a function under a rule: what every transform's result does when it is called."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxeff.program.evaluation import Rule, evaluate
from jaxeff.program.layers import Program
from jaxeff.program.trace import argument_leaves, trace


def interpret(
    f: Callable[..., Any],
    make_rule: Callable[[Program], Rule | None],
    key: PRNGKeyArray | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Reads `f` at its arguments and evaluates it under the rule made for its program.

    Args:
        f: A pure function `f(params, *args)`.
        make_rule: Gives the rule for a program, or None if there is nothing to change: then `f`
            itself is called, so that its result is the same bit for bit.
        key: The transform's PRNG key, if it has one.
        args: Positional arguments of `f`.
        kwargs: Keyword arguments of `f`.

    Returns:
        A result of the structure that `f` returns.
    """
    program = trace(f, *args, **kwargs)
    rule = make_rule(program)
    if rule is None:
        return f(*args, **kwargs)
    outputs = evaluate(program, rule, key, argument_leaves(args, kwargs))
    return jax.tree.unflatten(program.out_tree, outputs)
