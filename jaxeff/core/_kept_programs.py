"""Keeps what `jax.jit` compiled for calls of the host that make their function anew each time.

`jax.jit` knows a function by its identity: a function that is defined inside of a call, such as an
epoch over a loss and an optimizer, is compiled again by the next one. `kept_program` knows it by
what it is made of. A closure of this library, of JAX or of optax is its code and what it
closes over; a function of the user is itself, and what it reads of closures and of its module:

```python
import jax.numpy as jnp
import optax

from jaxeff.core import kept_program

first, again = (kept_program(optax.sgd(0.1).update) for _ in range(2))      # two objects
assert first.kept is again.kept and first.kept is not kept_program(optax.sgd(0.2).update).kept
updates, _ = again({"w": jnp.ones(3)}, optax.sgd(0.1).init({}))
assert jnp.allclose(updates["w"], -0.1)
```

Sharp edge: as under `jax.jit`, an array of NumPy that a function closes over counts as it was at
first, if it has more than 64 numbers; so does what is set in a module (`settings.width = 3`), and
what changes in an object without a `__dict__`. An object that has one counts by its attributes.
"""

import dataclasses
import functools
import itertools
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

MOST_KEPT = 64
"""Programs that are kept: those used last."""
SMALL = 64
"""Numbers of an array that is compared by value."""
MOST_PARTS = 10_000
"""Lists, functions and objects that are looked into; a function of more is compiled anew."""
FACTORIES = {"jax", "jaxeff", "jaxeff_export", "optax"}
"""Libraries that make functions anew in each call, of what these close over."""


_PLAIN = (bool, int, str, bytes, complex, type, np.dtype, jax.sharding.Sharding)


class _Jitted:
    """A function under `jax.jit`, which is asked for only where that traces it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        # What is kept mustn't hold the function, or that would never go.
        self._now = now = threading.local()
        self._run = jax.jit(lambda *args: now.f(*args), **options)

    def __call__(self, f: Callable[..., Any], *args: Any) -> Any:
        """Calls the program; `f` is the function, or another one that is made of the same."""
        outer, self._now.f = getattr(self._now, "f", None), f
        try:
            return self._run(*args)
        finally:
            self._now.f = outer


@dataclasses.dataclass(frozen=True)
class KeptProgram:
    """A function with the program that is kept for it.

    Attributes:
        kept: The program.
        f: The function.
    """

    kept: _Jitted
    f: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Computes the function."""
        return self.kept(self.f, *args)


_PROGRAMS: OrderedDict[Any, tuple[_Jitted, list[weakref.ref[Any]]]] = OrderedDict()


def kept_program(f: Callable[..., Any], **options: Any) -> KeptProgram:
    """Returns a function as `jax.jit` compiles it, with what it has compiled for the same before.

    A program goes with the first function or object that it was made of, and where `MOST_KEPT`
    others were used since.

    Args:
        f: The function, of positional arguments.
        **options: Options of `jax.jit`, such as `donate_argnums`.
    """
    parts = _Parts()
    try:
        key = parts.of((f, options))
    except (_NotKept, RecursionError):  # layers that refer to each other may be a long chain
        return KeptProgram(_Jitted(options), f)
    entry = _PROGRAMS.get(key)
    if entry is None:

        def gone(_: Any) -> None:
            _PROGRAMS.pop(key, None)

        refs = [weakref.ref(each, gone) for each in parts.living]
        entry = _PROGRAMS[key] = _Jitted(options), refs
        while len(_PROGRAMS) > MOST_KEPT:
            _PROGRAMS.popitem(last=False)
    else:
        _PROGRAMS.move_to_end(key)
    return KeptProgram(entry[0], f)


class _NotKept(Exception):
    """A program isn't worth keeping, or means nothing later: it holds a value of a trace."""


class _Same:
    """Equal where the object is the same one, which lives."""

    def __init__(self, x: Any) -> None:
        self._hash = id(x)
        try:
            self._living: Callable[[], Any] = weakref.ref(x)
        except TypeError:
            self._living = lambda: x

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        x = self._living()
        return x is not None and isinstance(other, _Same) and other._living() is x


class _Parts:
    """Takes values apart into what they are compared by.

    Attributes:
        living: What is compared by identity, and has to live.
    """

    def __init__(self) -> None:
        self.living: list[Any] = []
        self._seen: dict[int, int] = {}

    def of(self, x: Any) -> Any:
        """Returns what a value is compared by: hashable, and without a reference to functions."""
        if x is None or isinstance(x, _PLAIN):
            return type(x), x
        if isinstance(x, float):
            return float, x.hex()  # zeros have signs
        if isinstance(x, tuple):
            return (type(x), *map(self.of, x))
        if isinstance(x, list | dict | types.MappingProxyType | types.FunctionType):
            return self._perhaps_cyclic(x)
        if isinstance(x, functools.partial):
            return functools.partial, self.of((x.func, x.args, x.keywords))
        if isinstance(x, types.MethodType):
            return types.MethodType, self.of(x.__func__), self.of(x.__self__)
        if isinstance(x, jax.Array | np.ndarray | np.generic):
            return self._array(x)
        if dataclasses.is_dataclass(x) and _is_value(x):
            fields = (self.of(getattr(x, each.name, None)) for each in dataclasses.fields(x))
            return (type(x), *fields)
        if isinstance(x, set | frozenset):
            return type(x), frozenset(map(self.of, x))
        if isinstance(x, types.ModuleType):
            return self._same(x)
        if hasattr(x, "__dict__") and not _of_factory(type(x).__module__):
            return self._perhaps_cyclic(x)
        return self._same(x)

    def _perhaps_cyclic(self, x: Any) -> Any:
        # A function may close over itself.
        if (place := self._seen.get(id(x))) is not None:
            return "seen", place
        if len(self._seen) == MOST_PARTS:
            raise _NotKept
        self._seen[id(x)] = len(self._seen)
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, list):
            return (list, *map(self.of, x))
        if isinstance(x, dict | types.MappingProxyType):
            # By what it holds: one that was changed is another.
            return (type(x), *((self.of(name), self.of(value)) for name, value in x.items()))
        # Settings that a user changes between two calls are others, though the object is the same.
        return self._same(x), self.of(vars(x))

    def _same(self, x: Any) -> _Same:
        try:
            weakref.ref(x)
        except TypeError:
            return _Same(x)
        self.living.append(x)
        return _Same(x)

    def _function(self, f: types.FunctionType) -> Any:
        cells = []
        for cell in f.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # not bound yet
                cells.append("empty")
        reads = (tuple(cells), f.__defaults__, f.__kwdefaults__)
        if _of_factory(f.__globals__.get("__name__")):
            return f.__code__, self.of(reads)
        names = sorted({*_names(f.__code__)} & f.__globals__.keys())
        return (
            self._same(f),
            self.of(reads),
            tuple((name, self._global(f, f.__globals__[name])) for name in names),
        )

    def _global(self, reader: types.FunctionType, x: Any) -> Any:
        if isinstance(x, types.ModuleType):
            return None
        if isinstance(x, types.FunctionType) and x.__globals__ is not reader.__globals__:
            return self._same(x)  # what another module's function reads is its own matter
        return self.of(x)

    def _array(self, x: Any) -> Any:
        if isinstance(x, jax.core.Tracer):
            raise _NotKept
        weak = getattr(x, "weak_type", False)
        keys = jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
        if keys or x.size > SMALL or not getattr(x, "is_fully_addressable", True):
            return self._same(x)
        return type(x), x.dtype, x.shape, weak, np.asarray(x).tobytes()


def _is_value(x: Any) -> bool:
    """Tells whether a dataclass is what its fields are: settings, and losses of this library."""
    options = type(x).__dataclass_params__
    is_loss = callable(x) and _of_factory(type(x).__module__)
    return bool(options.frozen and (options.eq or is_loss))


def _of_factory(module: str | None) -> bool:
    return (module or "").partition(".")[0] in FACTORIES


def _names(code: types.CodeType) -> Iterator[str]:
    """Gives the names that code reads of its module, among others."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return itertools.chain(code.co_names, *map(_names, inner))
