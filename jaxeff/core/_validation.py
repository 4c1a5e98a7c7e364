"""`validate`: checks the arguments of a public function before it runs.

```python
from jaxeff.core import positive, validate

@validate(scale=positive)
def scores(key, f, params, samples=10, scale=1.0, exact=False):
    ...
```

An argument name means the same in every room, so `BY_NAME` says how those that many functions share
are checked: `key`, `f`, `params` and `samples` above. A decorator names the others only.

Nothing runs before all arguments have passed, and an error begins with the function and the
argument: `scores: samples must be at least 1, but is 0.` None passes where it is the default or the
annotation says so, and an argument annotated as `bool` takes True and False alone.

A check is a function of the argument's name in error messages and of its value. Checks look at
values only where they are concrete, so that everything still traces.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jaxeff.core._array_checks import READERS
from jaxeff.core._checks import (
    Check,
    boolean,
    one_of,
    optax_optimizer,
    parameter_tree,
    path_like,
    pure_function,
    single_key,
    static_integer,
    string_mapping,
    string_sequence,
)

F = TypeVar("F", bound=Callable[..., Any])

BY_NAME: Mapping[str, Check] = {
    "batch_size": static_integer(),
    "checkpoint": path_like,
    "checkpoint_every": static_integer(),
    "chunk": static_integer(),
    "epochs": static_integer(),
    "eval_every": static_integer(),
    "f": pure_function,
    "folder": path_like,
    "key": single_key,
    "optimizer": optax_optimizer,
    "params": parameter_tree,
    "path": path_like,
    "progress": boolean,
    "repeats": static_integer(),
    "resume": one_of(True, False, "force"),
    "samples": static_integer(),
    "settings": string_mapping,
    "sites": string_sequence,
}
"""The checks of arguments that have one meaning everywhere."""


def validate(**checks: Check | None) -> Callable[[F], F]:
    """Checks the arguments of a function before it runs.

    Args:
        **checks: A check for each argument by name, beside those of `BY_NAME`; None leaves one
            unchecked. Of `*args` the check is one for each of them.

    Raises:
        TypeError: The function has no argument of such a name.
    """

    def held(run: F) -> F:
        plan = _plan(run, checks)

        @functools.wraps(run)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name, position, several, optional, check in plan:
                if several:
                    for i, value in enumerate(args[position:]):
                        if value is not None:  # a pytree without leaves, such as no state
                            check(f"{run.__name__}: {name}[{i}]", value)
                    continue
                if name in kwargs:
                    value = kwargs[name]
                elif position < len(args):
                    value = args[position]
                else:
                    continue  # the default, or Python's own error
                if not (value is None and optional):
                    check(f"{run.__name__}: {name}", value)
            return run(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return held


def forwards(target: Callable[..., Any], options: type) -> Callable[[F], F]:
    """Gives the `**options` of a function the names and defaults of the function they go to.

    Args:
        target: The function that gets them.
        options: TypedDict of those that are passed on: what `**options` is annotated with.
    """
    defaults = inspect.signature(target).parameters
    # The fields of base classes too: a TypedDict's own annotations hold them.
    passed = [defaults[name] for name in options.__annotations__]
    required = [p.name for p in passed if p.default is p.empty]

    def signed(run: F) -> F:
        signature = inspect.signature(run)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = signature.replace(parameters=[*own, *passed])

        @functools.wraps(run)
        def called(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                # Else the target would refuse it, by its own name.
                if name not in signature.parameters:
                    raise TypeError(f"{run.__name__}() got an unexpected keyword argument {name!r}")
            missing = [repr(name) for name in required if name not in kwargs]
            if missing:  # said before the function does what the target can then not use
                many = "argument" if len(missing) == 1 else "arguments"
                raise TypeError(
                    f"{run.__name__}() missing {len(missing)} required keyword-only {many}: "
                    f"{' and '.join(missing)}"
                )
            return run(*args, **kwargs)

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return signed


def _plan(
    run: Callable[..., Any], checks: Mapping[str, Check | None]
) -> list[tuple[str, Any, bool, bool, Check]]:
    """Lists the checks: name, position, whether it is `*args`, whether None passes, the check."""
    parameters = inspect.signature(run).parameters
    unknown = checks.keys() - parameters.keys()
    if unknown:
        raise TypeError(f"validate: {run.__name__} has no argument {sorted(unknown)[0]!r}.")
    plan = []
    for i, (name, parameter) in enumerate(parameters.items()):
        # Where annotations are not evaluated, one is its text: `"bool"`, `"int | None"`.
        usual = boolean if parameter.annotation in (bool, "bool") else BY_NAME.get(name)
        check = checks.get(name, usual)
        if check is not None:
            several = parameter.kind is parameter.VAR_POSITIONAL
            by_name = parameter.kind is parameter.KEYWORD_ONLY
            # An argument by keyword alone has no position: beyond the end of any `args`.
            place = float("inf") if by_name else i
            optional = parameter.default is None or "None" in str(parameter.annotation)
            plan.append((name, place, several, optional, check))
    # The cheap and telling ones first: what an argument is, before what the data hold.
    return sorted(plan, key=lambda row: row[-1] in READERS)
