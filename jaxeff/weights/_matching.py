"""Which tensor is which parameter, by names and shapes, and how its axes lie.

Modules fit if their numbers have the same ranks and every parameter has a tensor of its role and a
shape that a layout leads to. Of those that fit, two are a pair if each is the other's only best by
the words of their names. What is left over is never guessed.

A name says words, numbers, and the tensor's role in its module. Words that mean the same in
different libraries are one word (`query` and `q_proj`). Numbers count by their rank among the names
that begin alike, so that `0, 2, 4` of a chain with activations in between are `0, 1, 2` of a list
of layers.

A layout says how a tensor of another library lies. PyTorch keeps what a layer makes first and what
it reads second (`[out, in]`, `OIHW`); Flax the other way round (`[in, out]`, `HWIO`). "reversed"
turns the first into the second; "as is" copies.

A transposed convolution of PyTorch is `[in, out, H, W]`. Flax's with `transpose_kernel=True` is the
same read backwards, so "reversed" again; by default it is `[H, W, in, out]` with windows turned end
to end, "mirrored".

A file may hold projections of attention as one tensor, query, key and value in thirds: it is split.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxeff.core import static_integer, validate

_ROLES = {
    "weight": "weight", "kernel": "weight", "embedding": "weight", "scale": "weight",
    "gamma": "weight", "w": "weight",
    "bias": "bias", "beta": "bias", "offset": "bias", "b": "bias",
    "mean": "mean", "running_mean": "mean", "moving_mean": "mean",
    "var": "var", "running_var": "var", "moving_var": "var", "moving_variance": "var",
}  # fmt: skip
_SYNONYMS = {
    word: common
    for common, words in {
        "q": "query wq", "k": "key wk", "v": "value wv", "out": "output o wo",
        "block": "blocks layer layers blk h", "attn": "attention mha attentions",
        "linear": "fc lin dense", "norm": "ln layernorm batchnorm bn rmsnorm",
        "embed": "embedding embeddings emb embd wte", "token": "tok tokens word",
        "pos": "position positional positions wpe", "mlp": "ffn", "head": "lm unembed classifier",
        "": "model module params transformer net network backbone self",
    }.items()
    for word in words.split()
}  # fmt: skip
_COLLECTIONS = ("params", "state", "batch_stats")  # roots of a tree of parameters and state
_WORDS = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True)
class Name:
    """A name taken apart.

    Attributes:
        module: Words and numbers of the module, as written.
        role: What the tensor is in it: "weight", "bias", "mean" or "var".
        leaf: The last part of the name, such as "kernel".
    """

    module: tuple[str, ...]
    role: str
    leaf: str

    @property
    def words(self) -> Counter[str]:
        """Counts the words of the module in common terms."""
        common = (_SYNONYMS.get(word, word) for word in self.module if not word.isdigit())
        return Counter(word for word in common if word)


def parse_name(text: str) -> Name:
    """Takes a name apart, of a parameter (`a/b/kernel`) or a tensor (`a.b.weight`)."""
    *parents, leaf = re.split(r"[./]", text)
    parents = parents[1:] if parents and parents[0] in _COLLECTIONS else parents
    role = _ROLES.get(leaf.lower())
    if role is None:
        # Such as `in_proj_weight`, whose module is `in_proj`.
        before, _, last = leaf.rpartition("_")
        role = _ROLES[last] if before and last in ("weight", "bias") else None
        leaf, parents = (last, [*parents, before]) if role else (leaf, [*parents, leaf])
    words = tuple(word.lower() for part in parents for word in _WORDS.findall(part))
    return Name(words, role or "weight", leaf.lower())


def ranked_numbers(modules: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Ranks the numbers of each module among those of modules that begin alike.

    A number without another one in its place says nothing and is left out.
    """
    modules = list(modules)
    seen: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for module in modules:
        for i, word in enumerate(module):
            if word.isdigit():
                seen[module[:i]].add(int(word))
    ranks = {
        start: {n: i for i, n in enumerate(sorted(numbers))} for start, numbers in seen.items()
    }
    return {
        module: tuple(
            ranks[module[:i]][int(word)]
            for i, word in enumerate(module)
            if word.isdigit() and len(seen[module[:i]]) > 1
        )
        for module in modules
    }


def likeness(a: Name, b: Name) -> float:
    """Says how many words two names share: 1 for all, 0 for none (Dice's coefficient)."""
    total = a.words.total() + b.words.total()
    return 2 * (a.words & b.words).total() / total if total else 1.0


Layout = str  # "reversed", "mirrored" or "as is"
Change = Callable[[np.ndarray], np.ndarray]

_SPATIAL = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}


def fitting_layouts(
    shape: tuple[int, ...], parameter: Name, tensor_shape: tuple[int, ...]
) -> set[Layout]:
    """Finds the layouts by which a tensor of shape `tensor_shape` becomes a parameter of `shape`.

    A tensor whose elements lie in one line is the same in both, and counts "as is", as does what is
    no kernel: an embedding, a table of positions.
    """
    layouts = set()
    if _reshapes(tensor_shape, shape):
        layouts.add("as is")
    line = sum(n != 1 for n in tensor_shape) <= 1
    if is_kernel(parameter) and not (line and layouts) and len(tensor_shape) in _SPATIAL:
        turned = tuple(tensor_shape[i] for i in _SPATIAL[len(tensor_shape)])
        if _reshapes(turned, shape):
            layouts.add("reversed")
        if len(tensor_shape) > 2 and shape == (*tensor_shape[2:], *tensor_shape[:2]):
            layouts.add("mirrored")
    return layouts


def is_kernel(parameter: Name) -> bool:
    """Whether a parameter's name is that of a kernel, which libraries lay out differently."""
    # A dense layer may be called an embedding (of patches); what is called a kernel is one.
    return parameter.leaf == "kernel" or (
        parameter.leaf in ("weight", "w") and "embed" not in parameter.words
    )


def apply_layout(array: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """Lays a tensor out as a parameter of a shape."""
    if layout == "reversed":
        array = array.transpose(_SPATIAL[array.ndim])
    elif layout == "mirrored":
        array = np.moveaxis(np.flip(array, tuple(range(2, array.ndim))), (0, 1), (-2, -1))
    return array.reshape(shape)


def _reshapes(tensor_shape: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether neighbouring axes of `shape` (heads and their width) make up the axes of `given`."""
    if math.prod(tensor_shape) != math.prod(shape) or 0 in shape:
        return tensor_shape == shape
    axes = [n for n in tensor_shape if n != 1]
    for n in (n for n in shape if n != 1):
        if not axes or axes[0] % n:
            return False
        axes[0] //= n
        if axes[0] == 1:
            axes.pop(0)
    return not axes


@validate(channels=static_integer())
def channels_last_inputs(channels: int) -> Change:
    """Makes a rule's function for a dense layer behind a flattened image.

    PyTorch flattens an image with channels first, Flax with channels last; so the first dense
    layer reads its inputs in another order.

    Args:
        channels: Channels of the image that is flattened.

    Returns:
        A function of a tensor `[out, channels * pixels]` that gives `[pixels * channels, out]`.

    Raises:
        ValueError: The tensor is no matrix, or its inputs are no multiple of the channels.

    ```python
    import numpy as np
    from jaxeff.weights import channels_last_inputs

    rules = {"fc1/kernel": ("fc1.weight", channels_last_inputs(16))}
    channels_last_inputs(16)(np.ones((120, 400))).shape  # (400, 120)
    ```
    """

    def change(array: np.ndarray) -> np.ndarray:
        if array.ndim != 2 or array.shape[1] % channels:
            raise ValueError(
                f"channels_last_inputs: a tensor of shape {array.shape} is no "
                f"[out, {channels} * pixels]."
            )
        return array.reshape(len(array), channels, -1).transpose(2, 1, 0).reshape(-1, len(array))

    return change


@validate(heads=static_integer())
def rotary_halves(heads: int) -> Change:
    """Makes a rule's function for query and key projections of GGUF files (Llama architecture).

    Such files hold each pair of rows that rotary positions turn side by side; models that turn
    the halves of a head against each other have them half a head apart.

    Args:
        heads: Heads of the projection (those of keys for the key projection).

    Returns:
        A function of a tensor `[heads * width, in]` or `[heads * width]` that undoes the order and
        gives `[in, heads * width]` or `[heads * width]`.

    Raises:
        ValueError: The rows aren't heads of an even width.

    ```python
    from jaxeff.weights import rotary_halves

    rules = {"layers/*/attn/query/kernel": ("blk.*.attn_q.weight", rotary_halves(9))}
    ```
    """

    def change(array: np.ndarray) -> np.ndarray:
        if array.ndim not in (1, 2) or len(array) % (2 * heads):
            raise ValueError(
                f"rotary_halves: {array.shape} isn't {heads} heads of an even width in rows."
            )
        pairs = array.reshape(heads, -1, 2, *array.shape[1:])
        return pairs.swapaxes(1, 2).reshape(array.shape).T

    return change


Shapes = Mapping[str, tuple[int, ...]]
_Module = dict[str, str]  # a name by role


def match_names(
    parameters: Shapes, tensors: Shapes, all_parameters: Iterable[str]
) -> dict[str, str]:
    """Pairs parameters with tensors.

    `tensors` are those that no parameter has yet; `all_parameters` rank the numbers in names.
    Returns the tensor of each parameter that has a clear one.
    """
    ours, theirs = _modules(parameters), _modules(tensors)
    our_ranks = ranked_numbers(parse_name(name).module for name in all_parameters)
    their_ranks = ranked_numbers(theirs)
    by_rank: dict[tuple[int, ...], list[tuple[str, ...]]] = defaultdict(list)
    for module in theirs:
        by_rank[their_ranks[module]].append(module)
    scores: dict[tuple[str, ...], dict[tuple[str, ...], float]] = {}
    for module, roles in ours.items():
        scores[module] = {
            other: likeness(Name(module, "", ""), Name(other, "", ""))
            for other in by_rank[our_ranks[module]]
            if _fits(roles, theirs[other], parameters, tensors)
        }
    pairs: dict[str, str] = {}
    for module, other in _mutual_best(scores).items():
        pairs |= {name: theirs[other][role] for role, name in ours[module].items()}
    return pairs


def nearest(parameter: str, shape: tuple[int, ...], tensors: Shapes, count: int = 3) -> list[str]:
    """Lists the tensors that a parameter may mean: of a shape that fits, the likest names first."""
    name = parse_name(parameter)
    fitting = [
        t for t, tensor_shape in tensors.items() if fitting_layouts(shape, name, tensor_shape)
    ]
    return sorted(fitting, key=lambda t: -likeness(name, parse_name(t)))[:count]


def _modules(names: Iterable[str]) -> dict[tuple[str, ...], _Module]:
    modules: dict[tuple[str, ...], _Module] = defaultdict(dict)
    for text in names:
        name = parse_name(text)
        module = name.module
        while name.role in modules[module]:  # two names that differ in their signs alone
            module = (*module, "again")
        modules[module][name.role] = text
    return dict(modules)


def _fits(roles: _Module, others: _Module, parameters: Shapes, tensors: Shapes) -> bool:
    return all(
        role in others
        and fitting_layouts(parameters[name], parse_name(name), tensors[others[role]])
        for role, name in roles.items()
    )


def _mutual_best(
    scores: Mapping[tuple[str, ...], Mapping[tuple[str, ...], float]],
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Pairs what is each other's only best, again and again among those that are left."""
    columns: dict[tuple[str, ...], dict[tuple[str, ...], float]] = defaultdict(dict)
    for row, entries in scores.items():
        for column, score in entries.items():
            columns[column][row] = score
    rows = {row: dict(entries) for row, entries in scores.items()}
    pairs: dict[tuple[str, ...], tuple[str, ...]] = {}
    while True:
        best_pairs = []
        for row, entries in rows.items():
            best = _only_best(entries)
            if best is not None and _only_best(columns[best]) == row:
                best_pairs.append((row, best))
        if not best_pairs:
            return pairs
        for row, column in best_pairs:
            pairs[row] = column
            for other in columns.pop(column):
                rows.get(other, {}).pop(column, None)
            for other in rows.pop(row):
                columns[other].pop(row, None)


def _only_best(entries: Mapping[tuple[str, ...], float]) -> tuple[str, ...] | None:
    best = max(entries.values(), default=None)
    names = [name for name, score in entries.items() if score == best]
    return names[0] if len(names) == 1 else None


_FUSED = (("qkv",), ("in", "proj"), ("c", "attn"), ("w", "qkv"))
_PARTS = "qkv"


def split_fused(
    arrays: dict[str, np.ndarray], parameters: Iterable[str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Splits fused tensors if the parameters aren't fused themselves.

    Thirds stand one after the other, in the order query, key, value. What mixes them by head, or
    has fewer keys than queries, needs a rule.

    Returns the tensors with the parts in the place of what was split, and the tensor that each part
    comes from.
    """
    words = set().union(*(parse_name(name).words for name in parameters))
    if not words.issuperset(_PARTS):
        return arrays, {}
    split_arrays: dict[str, np.ndarray] = {}
    fused_names: dict[str, str] = {}
    for name, array in arrays.items():
        mark, axis = _mark(name), _axis(array)
        if mark is None or axis is None:
            split_arrays[name] = array
            continue
        start = name.rindex(mark)
        for part, piece in zip(_PARTS, np.split(array, 3, axis), strict=True):
            piece_name = f"{name[:start]}{part}{name[start + len(mark) :]}"
            # A role in one word with the mark (`in_proj_weight`) stays one after it.
            split_arrays[piece_name] = piece
            fused_names[piece_name] = name
    return split_arrays, fused_names


def _mark(name: str) -> str | None:
    module = parse_name(name).module
    for mark in _FUSED:
        text = "_".join(mark)
        if module[-len(mark) :] == mark and text in name:
            return text
    return None


def _axis(array: np.ndarray) -> int | None:
    """The axis that holds the thirds: of a matrix the one that is three times the other."""
    if array.ndim == 1:
        return 0 if len(array) % 3 == 0 else None
    if array.ndim != 2:
        return None
    rows, columns = array.shape
    return 0 if rows == 3 * columns else 1 if columns == 3 * rows else None
