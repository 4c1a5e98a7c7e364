"""How a tensor of another library lies, and what makes it a parameter's array.

PyTorch keeps what a layer makes first and what it reads second (`[out, in]`, `OIHW`); Flax the
other way round (`[in, out]`, `HWIO`). "reversed" turns the first into the second; "as is" copies.

A transposed convolution of PyTorch is `[in, out, H, W]`. Flax's with `transpose_kernel=True` is the
same read backwards, so "reversed" again; by default it is `[H, W, in, out]` with windows turned end
to end, "mirrored".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jaxeff.core import static_integer, validate
from jaxeff.weights._names import Name

Layout = str  # "reversed", "mirrored" or "as is"
Change = Callable[[np.ndarray], np.ndarray]

_SPATIAL = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}


def fitting_layouts(shape: tuple[int, ...], parameter: Name, given: tuple[int, ...]) -> set[Layout]:
    """Finds the layouts by which a tensor of shape `given` becomes a parameter of `shape`.

    A tensor whose elements lie in one line is the same in both, and counts "as is", as does what is
    no kernel: an embedding, a table of positions.
    """
    found = set()
    if _reshapes(given, shape):
        found.add("as is")
    line = sum(n != 1 for n in given) <= 1
    if is_kernel(parameter) and not (line and found) and len(given) in _SPATIAL:
        turned = tuple(given[i] for i in _SPATIAL[len(given)])
        if _reshapes(turned, shape):
            found.add("reversed")
        if len(given) > 2 and shape == (*given[2:], *given[:2]):
            found.add("mirrored")
    return found


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


def _reshapes(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether neighbouring axes of `shape` (heads and their width) make up the axes of `given`."""
    if math.prod(given) != math.prod(shape) or 0 in shape:
        return given == shape
    axes = [n for n in given if n != 1]
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
