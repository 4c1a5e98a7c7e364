"""`validate`: checks the arguments of a public function before it runs, by checks of one each.

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

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import _arguments as arguments
from jaxeff.core import _misfits as misfits
from jaxeff.core._arguments import describe_value
from jaxeff.core._data import READERS, Check, as_arguments, parameter_tree, warn_of_scale
from jaxeff.core._settings import check_choice, check_count, check_number


def single_key(where: str, value: Any) -> None:
    """Checks for one random key, no array of them."""
    arguments.check_key(where, value)
    shape = np.shape(value)
    # A legacy key's words are its last axis; a typed key's are not in its shape.
    if shape if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else shape[:-1]:
        raise ValueError(
            f"{where} must be one random key, not an array of them of shape {list(shape)}: give "
            "one, or call it under jax.vmap."
        )


def pure_function(where: str, value: Any) -> None:
    """Checks for a pure function `f(params, *inputs)`."""
    arguments.check_function(where, value)


def function_of_form(form: str) -> Check:
    """Makes a check for a function that is called in another way."""
    return lambda where, value: arguments.check_function(where, value, form)


def static_integer(low: float = 1, high: int | None = None) -> Check:
    """Makes a check for a whole number that is known when a program is traced.

    A bound of `-inf` excludes none: an axis may be counted from the end.
    """
    return lambda where, value: check_count(where, value, low, high)


def number(low: float = -np.inf, high: float = np.inf, **bounds: Any) -> Check:
    """Makes a check for a real number or an array of them, finite unless `finite=False`."""
    return lambda where, value: check_number(where, value, low, high, **bounds)


finite = number()

positive = number(above=0)

non_negative = number(0)

probability = number(0, 1)


def one_of(*options: Any) -> Check:
    """Makes a check for one of a few values."""
    return lambda where, value: check_choice(where, value, options)


def any_of(*checks: Check) -> Check:
    """Makes a check that passes if one of several does; the error is that of the last."""

    def check(where: str, value: Any) -> None:
        for each in checks[:-1]:
            try:
                return each(where, value)
            except (TypeError, ValueError):
                continue
        return checks[-1](where, value)

    return check


def all_of(*checks: Check) -> Check:
    """Makes a check that passes if all of several do."""

    def check(where: str, value: Any) -> None:
        for one in checks:
            one(where, value)

    return check


def boolean(where: str, value: Any) -> None:
    """Checks for True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{where} must be True or False, not {describe_value(value)}.")


def string(where: str, value: Any) -> None:
    """Checks for a string that isn't empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{where} must be a string, not {describe_value(value)}.")


def path_like(where: str, value: Any) -> None:
    """Checks for a path of a file or folder."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{where} must be a path, not {describe_value(value)}.")


def string_sequence(where: str, value: Any) -> None:
    """Checks for a sequence of names, such as patterns of sites."""
    # A lone string is a sequence of one-letter names: almost always a forgotten bracket.
    alone = isinstance(value, str | Mapping) or not hasattr(value, "__iter__")
    if alone or not all(isinstance(name, str) for name in value):
        raise TypeError(
            f"{where} must be a sequence of strings such as ['fc1'], not {describe_value(value)}."
        )


def static_integers(low: int = 0) -> Check:
    """Makes a check for a sequence of whole numbers, such as a shape."""

    def check(where: str, value: Any) -> None:
        if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
            raise TypeError(
                f"{where} must be a sequence of whole numbers, not {describe_value(value)}."
            )
        for i, entry in enumerate(value):
            check_count(f"{where}[{i}]", entry, low)

    return check


def string_mapping(where: str, value: Any) -> None:
    """Checks for a mapping whose keys are strings."""
    if not isinstance(value, Mapping):
        told = arguments.describe_no_mapping(value)
        raise TypeError(f"{where} must be a mapping by name, not {told}.")
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"{where} must be a mapping by name, but {name!r} is no string.")


def spec_of(*classes: type) -> Check:
    """Makes a check for a spec: settings of some classes, or None, by pattern; no class itself."""

    def check(where: str, value: Any) -> None:
        string_mapping(where, value)
        for pattern, setting in value.items():
            if isinstance(setting, type):
                raise TypeError(
                    f"{where} has the class {setting.__name__} for {pattern!r}: write "
                    f"{setting.__name__}(...)."
                )
            if setting is not None and classes:
                instance_of(*classes)(f"{where} of {pattern!r}", setting)

    return check


def sequence_of(check: Check) -> Check:
    """Makes a check for a list or tuple whose entries pass a check."""

    def check_all(where: str, value: Any) -> None:
        instance_of(list, tuple)(where, value)
        for i, one in enumerate(value):
            check(f"{where}[{i}]", one)

    return check_all


def instance_of(*classes: type) -> Check:
    """Makes a check for an instance of some classes."""
    named = " or ".join(cls.__name__ for cls in classes)

    def check(where: str, value: Any) -> None:
        if not isinstance(value, classes):
            is_class = isinstance(value, type) and issubclass(value, classes)
            hint = f": write {value.__name__}(...)" if is_class else ""
            raise TypeError(f"{where} must be a {named}, not {describe_value(value)}{hint}.")

    return check


def optax_optimizer(where: str, value: Any) -> None:
    """Checks for an Optax gradient transformation."""
    if not all(callable(getattr(value, name, None)) for name in ("init", "update")):
        uncalled = f": call it, {value.__name__}(...)" if inspect.isfunction(value) else ""
        raise TypeError(
            f"{where} must be an optimizer such as optax.adam(1e-3), "
            f"not {describe_value(value)}{uncalled}."
        )


def posterior_like(where: str, value: Any) -> None:
    """Checks for a posterior of any kind, or a pytree of Gaussians."""
    if not hasattr(value, "to_gaussians") or isinstance(value, type):
        parameter_tree(where, value)


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
        parameters = inspect.signature(run).parameters
        NAMES.add(run.__name__)

        @functools.wraps(run)
        def checked(*args: Any, **kwargs: Any) -> Any:
            _check_keywords(run, parameters, kwargs)
            args, kwargs, seen = _without_result(parameters, args, kwargs)
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
            if seen:
                _compare(run, seen, args, kwargs)
            try:
                return run(*args, **kwargs)
            except Exception as error:
                if (told := _explained(run, error, args, kwargs)) is None:
                    raise
                for note in getattr(error, "__notes__", ()):
                    told.add_note(note)
                raise told from misfits.cause_of(error)

        return checked  # type: ignore[return-value]

    return held


NAMES: set[str] = set()
"""Names of the functions whose arguments are checked."""

INPUTS: Mapping[str, Callable[[Any], tuple[Any, Any]]] = {
    "args": lambda value: (value, None),
    "batch": lambda value: (as_arguments(value), None),
    "batches": lambda value: (as_arguments(value[0] if isinstance(value, list) else value), None),
    "data": lambda value: _inputs_and_targets(value),
    "calibrate": lambda value: (as_arguments(value), None),
    "inputs": lambda value: (as_arguments(value), None),
    "monitor": lambda value: (as_arguments(value), None),
    "outside": lambda value: (as_arguments(value)[:1], None),
    "validation": lambda value: _inputs_and_targets(value),
    "x": lambda value: (as_arguments(value), None),
}
"""What the arguments that hold data give a function: its inputs, and their targets if any."""


def _inputs_and_targets(value: Any) -> tuple[Any, Any]:
    value = getattr(value, "first", value)  # of batches
    if not isinstance(value, tuple | list):  # an iterator, which looking would use up
        raise TypeError("data are no parts")
    # Inputs before targets are one argument, a tuple of all, or stand one by one.
    inputs = as_arguments(value[0]) if len(value) == 2 else tuple(value[:-1])
    return inputs, value[-1]


_CALLED = re.compile(r"(\w+): (\w+)\b")


def _without_result(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Puts parameters in the place of a result of a training, and returns what inputs that saw.

    A result carries the ranges of the data, which parameters alone can't: a leaf more, or arrays of
    another class, would be other parameters.
    """
    if "params" not in parameters:
        return args, kwargs, None
    if (seen := getattr(kwargs.get("params"), "seen", None)) is not None:
        return args, {**kwargs, "params": kwargs["params"].params}, seen
    i = list(parameters).index("params")
    if i < len(args) and (seen := getattr(args[i], "seen", None)) is not None:
        return (*args[:i], args[i].params, *args[i + 1 :]), kwargs, seen
    return args, kwargs, None


def _held_inputs(values: Mapping[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    """Lists what arguments hold data: their names, inputs and targets."""
    for name, value in values.items():
        if name in INPUTS and value is not None:
            try:
                inputs, targets = INPUTS[name](value)
                yield name, inputs, targets
                # Where a tuple of inputs is one argument.
                if name in ("x", "data", "validation") and len(inputs) > 1:
                    yield name, (tuple(inputs),), targets
            except (TypeError, LookupError):  # an iterator, or data of another form
                continue


def _compare(
    run: Callable[..., Any], seen: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Warns of inputs of another scale than a training saw."""
    values = inspect.signature(run).bind_partial(*args, **kwargs).arguments
    for name, inputs, _ in _held_inputs(values):
        warn_of_scale(f"{run.__name__}: {name}", inputs, seen, "the training")


def _explained(
    run: Callable[..., Any], error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """Says an error in words of the call that was made; None if there is nothing to add.

    Data that the function doesn't take are the outermost call's to explain: only its caller knows
    them. What an inner call says of an argument with the same name is said of this one's.
    """
    parameters = inspect.signature(run).parameters
    ours = misfits.is_own(error)
    if isinstance(error, misfits.MisfitError) or not ours:
        values = inspect.signature(run).bind_partial(*args, **kwargs).arguments
        f, state = values.get("f", values.get("g")), values.get("state")
        params = values.get("params", values.get("posterior"))
        held = _held_inputs(values)
        if "params" not in parameters and "args" in values and "posterior" not in parameters:
            # Those that write files take (params, *inputs), and name what is kept as state.
            state = None
            params, *inputs = tuple(values["args"]) or (None,)
            held = [("args", tuple(inputs), None)]
        if callable(f):
            call = f if state is None else lambda params, *each: f(params, state, *each)
            for name, inputs, targets in held:
                where = f"{run.__name__}: {name}"
                told = misfits.misfit(where, call, params, inputs, error, targets)
                if told is not None:
                    return told
    called = _CALLED.match(str(error)) if ours and len(error.args) == 1 else None
    if called and called[1] in NAMES - {run.__name__} and called[2] in INPUTS.keys() & parameters:
        error.args = (run.__name__ + str(error)[called.end(1) :],)
    return None


def forwards(
    target: Callable[..., Any] | tuple[Callable[..., Any], ...], options: type
) -> Callable[[F], F]:
    """Gives the `**options` of a function the names and defaults of the function they go to.

    Args:
        target: The function that gets them, or several that share them (`options_for`).
        options: TypedDict of those that are passed on: what `**options` is annotated with.
    """
    targets = target if isinstance(target, tuple) else (target,)
    # Of targets that know the same option the first one's default holds.
    defaults: dict[str, inspect.Parameter] = {}
    for each in reversed(targets):
        defaults |= inspect.signature(each).parameters
    # The fields of base classes too: a TypedDict's own annotations hold them.
    passed = [defaults[name] for name in options.__annotations__]
    required = [p.name for p in passed if p.default is p.empty]

    def signed(run: F) -> F:
        signature = inspect.signature(run)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = signature.replace(parameters=[*named, *passed])

        @functools.wraps(run)
        def called(*args: Any, **kwargs: Any) -> Any:
            # Else the target would refuse it, by its own name.
            _check_keywords(run, signature.parameters, kwargs)
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


def options_for(target: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Selects of the options that several functions share those that one of them takes."""
    taken = inspect.signature(target).parameters
    return {name: value for name, value in options.items() if name in taken}


def _check_keywords(
    run: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], kwargs: Mapping[str, Any]
) -> None:
    """Refuses a keyword that the function doesn't take, and names the nearest that it does."""
    unknown = next((name for name in kwargs if name not in parameters), None)
    if unknown is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    near = difflib.get_close_matches(unknown, parameters, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise TypeError(f"{run.__name__}() got an unexpected keyword argument {unknown!r}{hint}")


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
