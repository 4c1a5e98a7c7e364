"""Calls a function under a rule: what every transform's result does when it is called.

```python
from jaxeff.nn import small_classifier
from jaxeff.program import interpret_sites, plain_rule, resolve

f, params, (x, _) = small_classifier()


def scaled(factor, layer, key, *values):
    return [factor * y for y in plain_rule(layer, key, *values)]


def factors(program):
    return resolve({"fc*": 0.5}, program)


logits = interpret_sites(f, factors, scaled, None, (params, x), {}, "scaled")
```

`interpret` is the same with a rule for every layer, such as one that looks at all of them:

```python
from jaxeff.program import interpret

sizes = {}


def observing(program):
    def rule(layer, key, *values):
        outputs = plain_rule(layer, key, *values)
        sizes[layer.site] = max(float(abs(y).max()) for y in outputs)
        return outputs

    return rule


logits = interpret(f, observing, None, (params, x), {})
assert sizes["fc2"] == abs(logits).max()
```
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxeff.program._closed import check_open
from jaxeff.program._evaluate import Rule, at_sites, evaluate
from jaxeff.program.ir import Program
from jaxeff.program.reading import argument_leaves, trace


def interpret(
    f: Callable[..., Any],
    make_rule: Callable[[Program], Rule | None],
    key: PRNGKeyArray | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    transform: str = "This transform",
) -> Any:
    """Reads `f` at its arguments and evaluates it under the rule made for its program.

    Args:
        f: A pure function `f(params, *args)`.
        make_rule: Gives the rule for a program, or None if there is nothing to change: then `f`
            itself is called, so that its result is the same bit for bit.
        key: The transform's PRNG key, if it has one.
        args: Positional arguments of `f`.
        kwargs: Keyword arguments of `f`.
        transform: Name of the transform in error messages.

    Returns:
        A result of the structure that `f` returns.

    Raises:
        ClosedError: The layers of `f` are none that a transform can act on
            (`jaxeff.program.closed`).
    """
    program = trace(f, *args, **kwargs)
    try:
        rule = make_rule(program)
    except ValueError:
        check_open(program, transform)  # why it can't act on the layers it finds
        raise
    if rule is None:
        return f(*args, **kwargs)
    check_open(program, transform)
    outputs = evaluate(program, rule, key, argument_leaves(args, kwargs))
    return jax.tree.unflatten(program.out_tree, outputs)


def interpret_sites(
    f: Callable[..., Any],
    settings_of: Callable[[Program], Mapping[str, Any]],
    rule: Rule,
    key: PRNGKeyArray | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    transform: str,
) -> Any:
    """Evaluates `f` with a rule for the layers that have a setting; without any it is `f` itself.

    Args:
        f: A pure function `f(params, *args)`.
        settings_of: Gives the settings of a program by site.
        rule: `rule(setting, layer, key, *values)`, as for `at_sites`.
        key: The transform's PRNG key, if it has one.
        args: Positional arguments of `f`.
        kwargs: Keyword arguments of `f`.
        transform: Name of the transform in error messages.

    Returns:
        A result of the structure that `f` returns.

    Raises:
        ClosedError: As for `interpret`.
    """

    def make_rule(program: Program) -> Rule | None:
        settings = settings_of(program)
        return at_sites(settings, rule) if settings else None

    return interpret(f, make_rule, key, args, kwargs, transform)
