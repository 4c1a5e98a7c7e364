"""What isn't guessed: layouts that can't be told, tensors that are missing or left."""

import math
import re
from collections.abc import Collection, Mapping

import numpy as np

from jaxeff.weights._files import DISPUTED, WeightsError
from jaxeff.weights._matching import Layout, Shapes, fitting_layouts, is_kernel, nearest, parse_name

_SHOWN = 8
# Counters and tables that are computed anew, no weights.
_BOOKKEEPING = ("num_batches_tracked", "inv_freq", "position_ids", "attn.bias", "masked_bias")
_CONVOLUTION = {"conv", "convolution"}
# Words of modules that may be transposed convolutions, or have them.
_MIRRORED = {
    "ct", "de", "dec", "decode", "decoder", "decoding", "expand", "expansive", "g", "gen",
    "generator", "t", "tr", "trans", "transp", "transpose", "transposed", "up", "ups", "upsample",
    "upsampling", "upscale",
}  # fmt: skip


def refuse_missing(origin: str, wanted: Shapes, matched: Collection[str], tensors: Shapes) -> None:
    """Raises if a parameter has no tensor, with those it may mean."""
    missing = [name for name in wanted if name not in matched]
    if not missing:
        return
    lines = [
        f"{len(missing)} of {len(wanted)} parameters have no clear tensor in {origin}, and nothing "
        "was loaded. Candidates by shape, the likest names first:"
    ]
    for name in missing[:_SHOWN]:
        near = [f"{t} {list(tensors[t])}" for t in nearest(name, wanted[name], tensors)]
        lines.append(f"  {name} {list(wanted[name])}: {', '.join(near) or 'none of its shape'}")
    if len(missing) > _SHOWN:
        lines.append(f"  and {len(missing) - _SHOWN} more")
    if origin.endswith(".onnx"):
        lines.append(
            "The file may hold folded batch norms; jaxeff_export.from_onnx reads its network too, "
            "with these weights as its parameters."
        )
    lines.append(
        f"Name the tensor, rules={{{missing[0]!r}: 'its name'}}, or keep=({missing[0]!r},)."
    )
    raise WeightsError("\n".join(lines))


def refuse_left(
    origin: str, tensors: Mapping[str, np.ndarray], used: set[str], wanted: Collection[str]
) -> None:
    """Raises if a tensor with weights is left: the file may be of a larger model."""
    left = [
        name
        for name, array in tensors.items()
        # Integers and single numbers are counters and shapes; a copy of what is used is tied to it.
        if name not in used
        and array.dtype.kind in "fV"
        and array.ndim
        and not name.endswith(_BOOKKEEPING)
        and not any(_same(array, tensors[other]) for other in used)
    ]
    if not left:
        return
    shown = ", ".join(f"{name} {list(tensors[name].shape)}" for name in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    statistics = any(parse_name(name).role in ("mean", "var") for name in left)
    hint = (
        ' Batch statistics are state: load {"params": params, "state": state} as one tree.'
        if statistics and not any(parse_name(name).role in ("mean", "var") for name in wanted)
        else ""
    )
    raise WeightsError(
        f"{len(left)} tensors of {origin} belong to no parameter, and nothing was loaded: {shown}"
        f"{more}.{hint} Where the model doesn't have them, ignore=({left[0]!r},)."
    )


def refuse_doubts(doubts: Mapping[str, str], pairs: Mapping[str, str]) -> None:
    """Raises if a tensor that a format makes ambiguous is taken without a function."""
    for name, tensor in pairs.items():
        if tensor in doubts:
            raise WeightsError(f"{tensor!r} for {name!r}: {doubts[tensor]}.")


def decide_layouts(
    pairs: Mapping[str, str],
    tied: Collection[str],
    shapes: Shapes,
    arrays: Mapping[str, np.ndarray],
    known: Mapping[str, Layout],
    mirrored: Collection[str] | None = None,
) -> dict[str, Layout]:
    """Decides how each tensor lies; those that fit both ways follow the others of the file.

    `pairs` has the tensor of each parameter, `tied` those that take the tensor of another one;
    `known` is how tensors lie by the graph of the file; `mirrored` are the kernels that are
    mirrored, of those that may be; nobody said where `None`.
    """
    layouts: dict[str, Layout] = {}
    open_: dict[str, str] = {}
    evidence: dict[int, set[Layout]] = {}
    for name, tensor in pairs.items():
        array = arrays[tensor]
        options = _options(name, tensor, array, shapes[name], known.get(tensor), mirrored)
        if len(options) == 1:
            (layouts[name],) = options
            line = sum(n != 1 for n in array.shape) <= 1
            kernel = is_kernel(parse_name(name)) and layouts[name] != "mirrored"
            if kernel and not line and name not in tied:
                evidence.setdefault(array.ndim, set()).add(layouts[name])
        elif known.get(tensor) in options:
            layouts[name] = known[tensor]
        elif known.get(tensor) == DISPUTED:
            raise WeightsError(
                f"{tensor!r} fits {name!r} {list(shapes[name])} as it is and transposed, and the "
                "file's graph reads it both ways (a tied layer): give a rule with a function, "
                f"({tensor!r}, numpy.transpose) or ({tensor!r}, numpy.asarray)."
            )
        else:
            open_[name] = tensor
    for name, tensor in open_.items():
        seen = evidence.get(arrays[tensor].ndim, set()) or _by_leaf(name, tensor)
        if len(seen) != 1:
            raise WeightsError(
                f"{tensor!r} fits {name!r} {list(shapes[name])} as it is and transposed, and the "
                "file's others don't tell: give a rule with a function, (name, numpy.transpose) or "
                "(name, numpy.asarray)."
            )
        (layouts[name],) = seen
    return layouts


def _options(
    name: str,
    tensor: str,
    array: np.ndarray,
    shape: tuple[int, ...],
    known: Layout | None,
    mirrored: Collection[str] | None,
) -> set[Layout]:
    """Lists how a tensor may lie, by its shape and by what is said of mirrored kernels."""
    options = fitting_layouts(shape, parse_name(name), array.shape)
    if "mirrored" in options and mirrored is not None:
        options &= {"mirrored"} if name in mirrored else {"reversed", "as is"}
    elif {"mirrored", "reversed"} <= options:
        says = known == "reversed" if known is not None else _says_convolution(name, tensor)
        if not says:
            raise WeightsError(
                f"{tensor!r} {list(array.shape)} for {name!r} has as many channels in as out, "
                "so it may be of a convolution, or of a transposed one, whose kernel Flax "
                f"mirrors. If it is a convolution, mirrored=(); if not, mirrored=({name!r},), "
                "or mirrored=() where its layer has transpose_kernel=True. Patterns stand for "
                "several."
            )
        options.discard("mirrored")
    if not options:
        raise WeightsError(
            f"{tensor!r} {list(array.shape)} doesn't become {name!r} {list(shape)} by "
            "any known layout: give a rule with a function."
        )
    return options


def refuse_flattened(
    pairs: Mapping[str, str],
    layouts: Mapping[str, Layout],
    shapes: Shapes,
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Raises at a dense layer behind a flattened image, whose inputs may stand in another order."""
    kernels = {n: arrays[t] for n, t in pairs.items() if is_kernel(parse_name(n))}
    windows = {
        n: s
        for n, s in shapes.items()
        if (kernels[n].ndim > 2 and layouts[n] != "as is" if n in kernels
            else len(s) > 3 and is_kernel(parse_name(n)))
    }  # fmt: skip
    dense = {n: a.shape for n, a in kernels.items() if a.ndim == 2 and layouts[n] == "reversed"}
    images = {shape[-1] for shape in windows.values()}
    for name, (_, inputs) in dense.items():
        channels = sorted(c for c in images if inputs % c == 0 and c < inputs)
        if not channels or _made_in_order(inputs, shapes, windows, dense):
            continue
        raise WeightsError(
            f"{pairs[name]!r} for {name!r} reads {inputs} inputs, which may be an image of "
            f"{' or '.join(map(str, channels))} channels, flattened with channels first: give a "
            f"rule, ({pairs[name]!r}, channels_last_inputs({channels[-1]})), or ({pairs[name]!r}, "
            "numpy.transpose) if its inputs are in order."
        )


def _made_in_order(
    width: int, shapes: Shapes, windows: Shapes, dense: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether a layer makes as many features as another one reads, which then stand in order.

    A square layer reads what it makes, and says nothing of where a row of them begins. Channels
    that another convolution reads aren't those that a dense layer does.
    """
    for name, shape in shapes.items():
        tables = len(shape) > 1 and name not in windows and dense.get(name) != (width, width)
        # A dense layer with a rule, or of several axes (heads and their width).
        if tables and width in (shape[-1], math.prod(shape[1:])):
            return True
    written = sum(shape[-1] == width for shape in windows.values())
    # A kernel of one channel is a depthwise one: it reads what it makes.
    read = sum((shape[-1] if shape[-2] == 1 else shape[-2]) == width for shape in windows.values())
    return written > read


def _says_convolution(name: str, tensor: str) -> bool:
    """Whether names say that a kernel is a convolution's, and nothing of a transposed one."""
    names = (re.sub(r"(?<=[a-z])[123]d(?![a-z])", "", n) for n in (name, tensor))  # conv2d
    modules = [[w for w in parse_name(n).module if not w.isdigit()] for n in names]
    last = {module[-1] for module in modules if module}
    return bool(last & _CONVOLUTION) and not {w for module in modules for w in module} & _MIRRORED


def _by_leaf(name: str, tensor: str) -> set[Layout]:
    """Goes by what libraries call a kernel, if they differ: `weight` is torch's."""
    leaves = parse_name(name).leaf, parse_name(tensor).leaf
    if leaves == ("kernel", "weight"):
        return {"reversed"}
    return {"as is"} if leaves == ("kernel", "kernel") else set()


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)
