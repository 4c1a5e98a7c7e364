"""Identity of a run and of what it computes: only the run that wrote a checkpoint continues it.

```python
import jax
import jax.numpy as jnp

from jaxeff.store import (
    CheckpointError, describe_arrays, describe_computation, require_same_run, run_identity
)

key, data, params = jax.random.key(0), jnp.arange(4.0), {"w": jnp.ones(())}
parts = describe_arrays("start", params)
parts["loss"] = describe_computation(lambda w, x: ((w["w"] * x) ** 2).mean(), params, data)
written = run_identity(key, data, {"rate": 0.1}, parts)          # goes into the checkpoint

require_same_run("the checkpoint is", written, run_identity(key, data, {"rate": 0.1}, parts))
try:
    require_same_run("the checkpoint is", written, run_identity(key, data, {"rate": 0.2}, parts))
except CheckpointError as error:
    assert "setting 'rate' is 0.1 there and 0.2 here" in str(error)
```
"""

import enum
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import (
    FAST,
    ClosedJaxpr,
    Jaxpr,
    check_key,
    jax_internals,
    span_processes,
    to_host,
    validate,
)
from jaxeff.store._writing import CheckpointError

MOST_NUMBERS = 64
"""At most this many different numbers are kept by value, to name a difference by."""

# What says how or where a program runs, what it is called, or how it would be differentiated once
# more; none of it changes what is computed.
_OF_NO_MATTER = {
    "name", "inline", "keep_unused", "donated_invars", "compiler_options_kvs", "ctx_mesh",
    "sharding", "shardings", "in_shardings", "out_shardings", "in_layouts", "out_layouts",
    "debug", "debug_info", "jvp_jaxpr_fun", "jvp_fun", "fwd_jaxpr_thunk", "fwd", "bwd",
    "symbolic_zeros", "transpose_jaxpr_thunk",
}  # fmt: skip


def describe_computation(f: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Describes what a function of arrays computes, in JSON's types.

    `describe_computation` says what a function computes, the same in every process. A run is
    identified by its loss and its optimizer too, and both are functions: a learning rate is a
    number inside of one. Traced on shapes, a function is a list of operations; their names,
    settings, literals and constants are hashed. Python's names, addresses and places in source
    files are not, so a function that is defined again, or elsewhere, has the same hash.

    ```python
    import jax.numpy as jnp

    from jaxeff.store import describe_computation

    def decayed(rate):
        return lambda params: params - rate * params


    weights = jnp.ones(3)
    known = describe_computation(decayed(0.1), weights)
    assert describe_computation(decayed(0.1), weights) == known  # another object, the same function
    assert describe_computation(decayed(0.2), weights)["numbers"] != known["numbers"]
    ```

    Sharp edges:
        Of a host callback (`jax.pure_callback`) only the name is seen.
        A function that is traced in another order each time, by looping over a set of strings, has
        another hash each time.
        Versions of JAX trace differently: functions can't be compared across them.

    Args:
      f: A function that JAX can trace.
      *args: The arguments, of which only structure, shapes and dtypes matter.

    Returns:
      JAX's version, its different numbers (the first `MOST_NUMBERS`) and a hash of all of it.
    """
    # Traced on shapes alone: values of the arguments never enter, `describe_arrays` is for those.
    closed = jax.make_jaxpr(f)(*jax.tree.map(_shape, args))
    reader = _ProgramHasher()
    digest = reader.closed(closed)
    return {"jax": jax.__version__, "numbers": [*reader.numbers][:MOST_NUMBERS], "hash": digest}


def array_hash(array: Any) -> str:
    """Hashes an array's values, dtype and shape; of random keys, their data."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    plain = np.ascontiguousarray(array)
    # `ascontiguousarray` gives a scalar an axis, so the shape is taken from what was given. It is
    # hashed because arrays of [2, 3] and [3, 2] may hold the same bytes.
    digest = hashlib.sha256(f"{plain.dtype.name}{np.shape(array)}".encode())
    # Bytes through a view: NumPy exports no buffer of bfloat16 and the float8 types.
    digest.update(plain.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    # Arrays of NumPy and of JAX are the same; so are numbers that are weakly typed and others.
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


class _ProgramHasher:
    """Reads programs into hashes, and gathers the numbers in them."""

    def __init__(self) -> None:
        self.numbers: dict[str, None] = {}
        # By identity, with the program itself so that no other takes its place: what is called
        # in many places is one object, and read once.
        self._known: dict[int, tuple[Any, str]] = {}

    def closed(self, closed: ClosedJaxpr) -> str:
        return _hash([self._jaxpr(closed.jaxpr), *map(self._array, closed.consts)])

    def _jaxpr(self, jaxpr: Jaxpr) -> str:
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, _hash(self._parts(jaxpr))
        return self._known[id(jaxpr)][1]

    def _parts(self, jaxpr: Jaxpr) -> list[str]:
        numbers: dict[Any, int] = {}  # of variables, in the order in which they are bound

        def bound(variables: Any) -> str:
            for variable in variables:
                numbers[variable] = len(numbers)
            return "; ".join(_type(v.aval) for v in variables)

        def read(atom: Any) -> str:
            return (
                self._literal(atom)
                if isinstance(atom, jax_internals.Literal)
                else str(numbers[atom])
            )

        parts = [bound([*jaxpr.constvars, *jaxpr.invars])]
        for eqn in jax_internals.equations(jaxpr):
            settings = {k: v for k, v in eqn.params.items() if k not in _OF_NO_MATTER}
            operands = " ".join(map(read, eqn.invars))
            text = f"{eqn.primitive.name} {operands} {self._setting(settings)}"
            parts.append(f"{text} -> {bound(eqn.outvars)}")
        return [*parts, " ".join(map(read, jaxpr.outvars))]

    def _literal(self, literal: Any) -> str:
        return self._array(np.asarray(literal.val, literal.aval.dtype))

    def _array(self, array: Any) -> str:
        if not hasattr(array, "dtype"):
            array = np.asarray(array)
        # A learning rate or a decay is a scalar: kept by value, so that a message can name it.
        if not np.shape(array) and jnp.issubdtype(array.dtype, jnp.floating):
            self.numbers[f"{float(array):.6g}"] = None
        return array_hash(array)

    def _setting(self, value: Any) -> str:
        """Describes a setting of an operation, without what differs from process to process."""
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self._jaxpr(value)
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, enum.Enum | np.dtype):
            return str(value)
        if isinstance(value, Mapping):
            parts = [f"{key}: {self._setting(value[key])}" for key in sorted(value, key=str)]
            return f"{{{', '.join(parts)}}}"
        # Strings hash differently in each process, so a set's own order is not reproducible.
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(map(self._setting, value)))}}}"
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self._setting, value))})"
        if isinstance(value, functools.partial):
            return self._setting((value.func, value.args, value.keywords))
        if callable(value) and not isinstance(value, type):
            inner = getattr(value, "callback_func", None)  # of a host callback
            if inner is not None:
                return self._setting(inner)
            # By name: the `repr` of a function holds its address.
            named = value if hasattr(value, "__qualname__") else type(value)
            return f"{named.__module__}.{named.__qualname__}"
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _type(aval: Any) -> str:
    shaped = hasattr(aval, "dtype")
    return f"{aval.dtype}{list(aval.shape)}" if shaped else type(aval).__name__


def _hash(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


Resume = bool | Literal["force"]
"""Whether to go on from what is there; ``"force"`` does so although another run left it."""


@validate(key=check_key)
def run_identity(
    key: jax.Array,
    data: Any,
    settings: Mapping[str, Any] | None,
    parts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describes a run by what must not change between its parts, in JSON's types.

    Args:
      key: Random key of the run.
      data: Pytree of arrays.
      settings: Anything else that defines the run, as JSON.
      parts: What else it is made of, by name: `describe_arrays` of where it starts, and
        `describe_computation` of its functions.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = jax.random.key_data(key) if typed else key
    described: dict[str, Any] = {"key": np.asarray(raw).tolist()}
    # The same words mean other draws under another implementation.
    if typed and jax.random.key_impl(key) == FAST:
        described["key's implementation"] = str(FAST)
    for name, value in (settings or {}).items():
        described[f"setting {name!r}"] = value
    # In this order: the first difference that is named should be the one that people set.
    return described | describe_arrays("data", data) | dict(parts or {})


def describe_arrays(name: str, tree: Any) -> dict[str, Any]:
    """Describes a pytree of arrays, leaf by leaf, in JSON's types.

    Args:
      name: What it is called in messages.
      tree: Pytree of NumPy or JAX arrays: arrays of the same values are the same.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{name}{jax.tree_util.keystr(path)}": _described(leaf) for path, leaf in leaves}


def _described(leaf: Any) -> dict[str, Any]:
    """Describes an array as JAX has it, whichever kind it was given as."""
    # With 64-bit types off, JAX computes on a float64 array as float32: identify it as that, so
    # that NumPy's and JAX's copy of the same data are the same.
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    leaf = to_host(leaf) if span_processes(leaf) else leaf
    flat = np.asarray(leaf).reshape(-1)
    # A few values beside the hash of all of them: whether rounding alone may have changed it.
    rows = np.linspace(0, max(flat.size - 1, 0), min(flat.size, 64)).astype(int)
    return {
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "sample": [f"{v:.6g}" for v in _plain_numbers(flat[rows])],
        "hash": array_hash(leaf),
    }


def _plain_numbers(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "c" else values.astype(np.float64)


def require_same_run(
    what: str,
    stored: Any,
    current: Any,
    *,
    run: str = "run",
    place: str = "file",
    overwrite: str = 'pass resume=False to overwrite it, or resume="force" to go on all the same',
) -> None:
    """Refuses what another run left.

    Args:
      what: What was found and its verb, the beginning of the message.
      stored: The identity that was found, as JSON has it.
      current: The identity of the run that wants to go on.
      run: What a run is called here.
      place: What to choose another of.
      overwrite: Way to overwrite what is there.

    Raises:
      CheckpointError: They differ; the message names the first difference and the ways out.
    """
    if difference := run_difference(stored, current):
        raise CheckpointError(
            f"{what} of another {run}: {difference}. Continue that {run}, choose another {place}, "
            f"or {overwrite}."
        )


def run_difference(stored: Any, current: Any) -> str:
    """Describes the first difference between two identities, or nothing."""
    # Through JSON first, so that tuples and lists compare equal.
    for name in [*stored, *(name for name in current if name not in stored)]:
        old, new = stored.get(name), _plain(current.get(name))
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return _part_difference(name, old, new)
        if isinstance(old, dict) or isinstance(new, dict):
            return f"{name} was {'not ' if old is None else ''}recorded there, and is " + (
                "not given here" if new is None else "here"
            )
        return f"{name} is {old!r} there and {new!r} here"
    return ""


def _part_difference(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    # In the order shape, dtype, sample, hash: the first one that differs explains the most.
    part = next(k for k in {**old, **new} if old.get(k) != new.get(k))
    there: Any = old.get(part)
    here: Any = new.get(part)
    if part == "jax":
        return f"the {name} was traced by JAX {there} there and {here} here, which may differ"
    if part == "sample" and not old["shape"]:
        return f"{name} is {there[0]} there and {here[0]} here"
    if part == "sample":
        return f"{name} has other values"
    if part == "numbers":
        both = ((there, here, "there"), (here, there, "here"))
        alone = [(", ".join([n for n in a if n not in b][:3]), where) for a, b, where in both]
        details = ", ".join(f"with {numbers} only {where}" for numbers, where in alone if numbers)
        return f"the {name} differs: it computes {details or 'in another order'}"
    if part == "hash" and "numbers" in old:
        return f"the {name} differs: it computes something else"
    if part == "hash":
        return f"{name} has other values, though few or by rounding alone"
    return f"{name} has {part} {there} there and {here} here"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
