"""`load_weights`: a pytree of parameters with the values of a file that another library wrote.

Sharp edges:
    Batch statistics are no parameters: load both in one tree, `load_weights({"params": params,
    "state": state}, ...)` with those of `functional(model, mutable=True)`.
    A square matrix lies as the others of the file do; where all are square, a `weight` of a file is
    `[out, in]` to a `kernel`. Recurrent cells, whose gates stand in an order of their own, and
    experts in one stack need rules.
    Of a kernel with as many channels in as out no shape tells whether it is of a transposed
    convolution. It is taken as a convolution's where a graph (`.onnx`) or its name (`conv1`) says
    so; else `mirrored` has to.
    Positions within a head (rotary halves or pairs), the axes of a flattened image and epsilons are
    conventions that no name or shape tells. The second is refused where it's met; compare outputs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import Table, parameter_tree, string_sequence, validate
from jaxeff.weights import _matching as matching
from jaxeff.weights import _refusals as refusals
from jaxeff.weights._files import Source, WeightsError, check_source, read_tensors
from jaxeff.weights._orbax import named_leaves

Rules = Mapping[str, str | tuple[str, matching.Change]]


def check_rules(where: str, rules: Any) -> None:
    """Refuses what is no table of rules."""
    if not isinstance(rules, Mapping):
        raise TypeError(f"{where} must be a mapping of parameters to tensors, not {rules!r}.")
    for pattern, rule in rules.items():
        pair = isinstance(rule, tuple) and len(rule) == 2 and callable(rule[1])
        name = rule[0] if pair else rule
        if not isinstance(pattern, str) or not isinstance(name, str):
            raise TypeError(
                f"{where}: {pattern!r} must be mapped to a tensor's name, or to a tuple of it and "
                f"a function of the tensor, not {rule!r}."
            )


def apply_rules(
    rules: Rules, parameters: Iterable[str], tensors: Mapping[str, Any]
) -> dict[str, tuple[str, matching.Change | None]]:
    """Finds the tensor and the function of each parameter that a rule names.

    Each `*` of a tensor's name stands for what the `*` in its place matched in the parameter's.
    """
    assignments: dict[str, tuple[str, matching.Change | None]] = {}
    parameters = list(parameters)
    for pattern, rule in rules.items():
        text, change = (rule, None) if isinstance(rule, str) else rule
        # The text between the wildcards literally: a bracket is part of a name.
        expression = "(.*)".join(map(re.escape, pattern.split("*")))
        matches = [(p, m) for p in parameters if (m := re.fullmatch(expression, p))]
        if not matches:
            raise WeightsError(
                f"the rule {pattern!r} matches no parameter of {', '.join(parameters[:20])}."
            )
        for parameter, match in matches:
            if parameter in assignments:
                raise WeightsError(f"two rules match {parameter!r}; one of them is {pattern!r}.")
            tensor = text
            for part in match.groups():
                tensor = tensor.replace("*", part, 1)
            if tensor not in tensors:
                raise WeightsError(f"the rule {pattern!r} asks for {tensor!r}, which isn't there.")
            assignments[parameter] = (tensor, change)
    return assignments


def matching_names(where: str, patterns: Sequence[str], names: Iterable[str]) -> set[str]:
    """Finds the names that patterns match."""
    names = list(names)
    selected: set[str] = set()
    for pattern in patterns:
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise WeightsError(f"{where}: {pattern!r} matches none of {', '.join(names[:20])}.")
        selected |= matches
    return selected


class LoadedWeights(NamedTuple):
    """What `load_weights` returns.

    Attributes:
        params: The parameters with the file's values, in the structure and dtypes they had.
        pairs: A table to print: parameter, tensor, shape, and what was done.
    """

    params: Any
    pairs: Table


@validate(params=parameter_tree, source=check_source, rules=check_rules, keep=string_sequence,
          ignore=string_sequence, mirrored=string_sequence)  # fmt: skip
def load_weights(
    params: Any,
    source: Source,
    rules: Rules | None = None,
    *,
    keep: Sequence[str] = (),
    ignore: Sequence[str] = (),
    mirrored: Sequence[str] | None = None,
) -> LoadedWeights:
    """Gives parameters the values of a file of weights.

    Names are compared by their words, numbers and roles, shapes by how libraries lay kernels out:
    `[out, in]` and `OIHW` become `[in, out]` and `HWIO`, heads are split from or joined to widths,
    query, key and value are cut from one tensor, and a tied head takes the embedding.

    Args:
        params: Pytree of arrays, or of `jax.ShapeDtypeStruct`, that says the shapes and dtypes.
        source: A file (`.safetensors`, `.npz`, `.gguf`, `.onnx`), a sequence of files (shards), a
            folder of Orbax, or a mapping of names to arrays, such as a torch `state_dict` of NumPy
            arrays.
        rules: What isn't found alone: patterns of parameters to names of tensors, where a `*`
            stands for what the `*` of the pattern matched; or tuples of the name and a function
            from the tensor to the parameter's array.
        keep: Patterns of parameters that stay as they are, such as a new head.
        ignore: Patterns of tensors that the model doesn't have.
        mirrored: Patterns of the kernels of transposed convolutions that Flax mirrors (without
            `transpose_kernel`); `()` where there are none. Asked for where channels in and out are
            equal, since otherwise shapes tell.

    Returns:
        The parameters and the table of pairs.

    Raises:
        TypeError: An argument is of another kind.
        FileNotFoundError: There is no such file.
        ImportError: The package that reads the format isn't there (`jaxeff[weights]`).
        WeightsError: A file is damaged or a pickle; a parameter has no tensor, or several that fit;
            a tensor is left, isn't finite, or lies in a way that can't be told. Nothing is loaded.

    ```python
    import jax.numpy as jnp
    import numpy as np

    import jaxeff

    params = {"fc": {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}}
    torch = {"linear.weight": np.ones((2, 3)), "linear.bias": np.ones(2)}
    params, pairs = jaxeff.load_weights(params, torch)
    print(pairs)
    ```
    """
    treedef, leaves = jax.tree.structure(params), named_leaves(params)
    shapes = {name: tuple(np.shape(leaf)) for name, leaf in leaves.items()}
    tensors = read_tensors(source)
    ruled = apply_rules(rules or {}, leaves, tensors.arrays)
    kept = matching_names("keep", keep, leaves)
    ignored = matching_names("ignore", ignore, tensors.arrays)
    mirrors = None if mirrored is None else matching_names("mirrored", mirrored, leaves)
    for name in sorted(kept & ruled.keys()):
        raise WeightsError(f"{name!r} is kept, but a rule gives it a tensor.")

    named_by_rules = {tensor for tensor, _ in ruled.values()}
    # What a rule names is taken, also if a pattern leaves out the rest.
    pool = {n: a for n, a in tensors.arrays.items() if n in named_by_rules or n not in ignored}
    free, fused = matching.split_fused(
        {n: a for n, a in pool.items() if n not in named_by_rules}, leaves
    )
    wanted = {n: s for n, s in shapes.items() if n not in ruled and n not in kept}
    free_shapes = {n: a.shape for n, a in free.items()}
    matched = matching.match_names(wanted, free_shapes, leaves)
    tied = _tie_heads(wanted, matched, free)
    refusals.refuse_missing(tensors.origin, wanted, matched | tied, free_shapes)
    refusals.refuse_left(tensors.origin, free, set(matched.values()), wanted)

    arrays = pool | free
    plain = {n: t for n, (t, change) in ruled.items() if change is None} | matched | tied
    refusals.refuse_doubts(tensors.doubts, plain)
    layouts = refusals.decide_layouts(plain, tied, shapes, arrays, tensors.layouts, mirrors)
    refusals.refuse_flattened(plain, layouts, shapes, arrays)
    new: dict[str, Any] = {name: leaves[name] for name in kept}
    rows = {name: _row(name, "", leaves[name], "kept") for name in kept}
    for name, (tensor, change) in ({n: (t, None) for n, t in plain.items()} | ruled).items():
        value, done = _apply_changes(
            name, tensor, arrays[tensor], change, layouts.get(name), shapes[name]
        )
        new[name] = _convert(name, tensor, value, leaves[name])
        notes = [done, "tied" if name in tied else "", "a third" if tensor in fused else ""]
        rows[name] = _row(name, fused.get(tensor, tensor), value, ", ".join(filter(None, notes)))
    table = Table(("parameter", "tensor", "shape", "done"), [rows[name] for name in leaves])
    return LoadedWeights(jax.tree.unflatten(treedef, [new[name] for name in leaves]), table)


def _tie_heads(
    wanted: Mapping[str, tuple[int, ...]],
    tensor_of: Mapping[str, str],
    free: Mapping[str, np.ndarray],
) -> dict[str, str]:
    """Gives a head without a tensor the embedding of tokens, if the file has just one."""
    taken = set(tensor_of.values())
    tied = {}
    for name in wanted.keys() - tensor_of.keys():
        if not {"head", "out"} & set(matching.parse_name(name).words):
            continue
        fitting = [
            other
            for other in matching.nearest(
                name, wanted[name], {n: a.shape for n, a in free.items()}, 99
            )
            if other in taken
            and "embed" in matching.parse_name(other).words
            and free[other].ndim == 2
        ]
        if len(fitting) == 1:
            tied[name] = fitting[0]
    return tied


def _apply_changes(
    name: str,
    tensor: str,
    array: np.ndarray,
    change: matching.Change | None,
    layout: str | None,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, str]:
    if change is None:
        assert layout is not None
        return matching.apply_layout(array, layout, shape), "" if layout == "as is" else layout
    try:
        value = np.asarray(change(array))
    except Exception as error:
        raise WeightsError(f"the rule of {name!r} fails at {tensor!r}: {error}") from error
    if value.shape != shape:
        raise WeightsError(
            f"the rule of {name!r} makes {list(value.shape)} of {tensor!r}, not {list(shape)}."
        )
    return value, getattr(change, "__name__", "changed")


def _convert(name: str, tensor: str, value: np.ndarray, leaf: Any) -> jax.Array:
    dtype = jnp.result_type(leaf)
    if jnp.issubdtype(dtype, jnp.floating) != jnp.issubdtype(value.dtype, jnp.floating):
        raise WeightsError(
            f"{tensor!r} holds {value.dtype}, but {name!r} is {dtype}: codes of a quantized model "
            "have to become numbers first, by a rule with a function."
        )
    with np.errstate(over="ignore"):  # what is too large for the dtype is found below
        converted = value.astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and not np.isfinite(converted).all():
        raise WeightsError(f"{tensor!r} has values that aren't finite as {dtype}.")
    return jnp.asarray(converted)


def _row(name: str, tensor: str, value: Any, done: str) -> tuple[str, str, str, str]:
    return name, tensor, "x".join(map(str, np.shape(value))) or "one number", done
