"""Random modules of PyTorch: recurrent, pooled, with views, writes in place and sizes read."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import jaxeff
from experiments.beyond.fuzz.drawing import Draw
from experiments.beyond.trials import Cell, apart

Step = tuple[str, nn.Module | None, Callable[[nn.Module | None, torch.Tensor], torch.Tensor]]
"""Its name, its module, and the function of both and of a value."""
Rule = Callable[[Draw, torch.Tensor], Step]

_EXACT = 2e-5  # of the largest result: sums in another order
_SIZES = 2, 5
"""Examples of a batch: sizes that were read are those of the call."""


class Drawn(nn.Module):
    """Steps one after another."""

    def __init__(self, steps: list[Step]) -> None:
        """Registers the modules of the steps."""
        super().__init__()
        self.parts = nn.ModuleList([module or nn.Identity() for _, module, _ in steps])
        self.functions = [function for *_, function in steps]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes them."""
        for part, function in zip(self.parts, self.functions, strict=True):
            x = function(part, x)
        return x


def module(seed: int) -> tuple[str, Drawn, np.ndarray]:
    """Draws a module of sequences or images: in words, itself, and eight examples."""
    d = Draw(seed)
    torch.manual_seed(seed)
    shape: tuple[int, ...] = (d.one((4, 5, 6)), d.one((2, 4, 6)))
    rules: Sequence[Rule] = _OF_SEQUENCES
    if d.often(0.4):
        shape, rules = (d.one((2, 4)), d.one((5, 6, 8)), d.one((6, 7))), _OF_IMAGES
    x = np.array(d.normal(8, *shape))
    steps: list[Step] = []
    value = torch.from_numpy(x[:2])
    for _ in range(d.one((2, 3, 4))):
        step = d.one(rules if value.ndim == x.ndim else _OF_VECTORS)(d, value)
        with torch.no_grad():
            value = step[2](step[1] or nn.Identity(), value)
        steps.append(step)
    words = f"{'x'.join(map(str, shape))}: {', '.join(name for name, *_ in steps)}"
    return words, Drawn(steps).eval(), x


def _recurrent(d: Draw, x: torch.Tensor) -> Step:
    """A recurrent layer, whose results' sizes are read."""
    kind = d.one((nn.RNN, nn.GRU, nn.LSTM))
    first, both = d.often(0.7), d.often(0.3)
    size, layers = d.one((2, 3, 4)), d.one((1, 1, 2))
    layer = kind(x.shape[2], size, layers, batch_first=first, bidirectional=both)
    how = d.one(("all", "mean", "last", "chunk", "flatten", "state"))

    def apply(layer: Any, x: torch.Tensor) -> torch.Tensor:
        states, final = layer(x if first else x.transpose(0, 1))
        h = states if first else states.transpose(0, 1)
        if how == "mean":
            return h.sum(1) / h.size(1)
        if how == "last":
            return h[:, h.shape[1] - 1]
        if how == "chunk":
            a, b = h.chunk(2, 2)
            return a * b if a.shape == b.shape else h
        if how == "flatten":
            return h.reshape(h.size(0), -1)
        if how == "state":
            end = final[0] if isinstance(final, tuple) else final
            return end.permute(1, 0, 2).flatten(1)
        return h

    name = f"{kind.__name__} {size}x{layers}" + " batch first" * first + " both ways" * both
    return f"{name} {how}", layer, apply


def _view(d: Draw, x: torch.Tensor) -> Step:
    """The same values as another view, by sizes that are read."""
    kind = d.one(
        ("transpose", "unflatten", "roll", "unfold", "expand", "narrow", "stride", "stack")
    )

    def apply(_: Any, x: torch.Tensor) -> torch.Tensor:
        n, length = x.size(0), x.size(1)
        if kind == "transpose":
            return x.transpose(1, 2).contiguous().view(n, x.shape[2], length, *x.shape[3:])
        if kind == "unflatten":
            return x.unflatten(1, (1, length)).squeeze(1)
        if kind == "roll":
            return torch.roll(x, length // 2, 1)
        if kind == "unfold":
            return x.unfold(1, 2, 1).mean(-1)
        if kind == "expand":
            return x + x[:, :1].expand(-1, length, *x.shape[2:])
        if kind == "narrow":
            return x.narrow(1, 0, max(1, length - 1))
        if kind == "stride":
            return x[:, ::2] if length > 2 else x.flip(1)
        return torch.stack([x, -x], 2).flatten(1, 2)

    return kind, None, apply


def _written(d: Draw, x: torch.Tensor) -> Step:
    """Writes in place: to a copy, to a view of it, or to a new array."""
    kind = d.one(("slice", "view", "mask", "stepped", "relu", "zeros", "index", "swap"))

    def apply(_: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        if kind == "slice":
            y[:, 0] = x[:, -1] * 2
        elif kind == "view":
            y[:, : max(1, y.size(1) // 2)].mul_(3).add_(1)
        elif kind == "mask":
            y.masked_fill_(x > 0.5, 0.25)
        elif kind == "stepped":
            y[:, ::2] += x[:, ::2] * x.size(1)
        elif kind == "relu":
            F.relu_(y)
        elif kind == "zeros":
            y = torch.zeros_like(x)
            for i in range(x.size(1)):
                y[:, i] = x[:, : i + 1].sum(1)
        elif kind == "index":
            y.index_add_(1, torch.tensor([0, 0]), x[:, :2])
        else:
            y[:, 0], y[:, -1] = x[:, -1], x[:, 0]
        return y

    return f"write {kind}", None, apply


def _dense(d: Draw, x: torch.Tensor) -> Step:
    """A product with an activation, in place or not."""
    name = d.one(("relu", "gelu", "tanh", "silu", "relu_"))
    out, function = d.one((2, 4, 5)), getattr(torch if name == "tanh" else F, name)
    layer = nn.Linear(x.shape[-1], out)

    def apply(layer: Any, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = function(layer(x))
        return y

    return f"linear {out} {name}", layer, apply


def _norm(d: Draw, x: torch.Tensor) -> Step:
    """A norm over the last axis, or over axes by hand."""
    if d.often():
        return "layer norm", nn.LayerNorm(x.shape[-1]), _applied
    return "by hand", None, lambda _, x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1)


def _applied(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = layer(x)
    return y


def _attention(d: Draw, x: torch.Tensor) -> Step:
    """Attention of positions, with or without a mask of their number."""
    causal = d.often()
    heads = math.gcd(d.one((1, 2)), x.shape[2])
    layer = nn.MultiheadAttention(x.shape[2], heads, batch_first=True)

    def apply(layer: Any, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1) if causal else None
        return x + layer(x, x, x, attn_mask=mask, need_weights=False)[0]

    return "attention" + " causal" * causal, layer, apply


def _over_time(d: Draw, x: torch.Tensor) -> Step:
    """A convolution or a pool over positions, channels turned forth and back."""
    kind = d.one(("conv", "max", "avg", "adaptive"))
    layer = {
        "conv": lambda: nn.Conv1d(x.shape[2], 4, 3, padding=1),
        "max": lambda: nn.MaxPool1d(2, ceil_mode=d.often()),
        "avg": lambda: nn.AvgPool1d(2, 1, count_include_pad=d.often(), padding=1),
        "adaptive": lambda: nn.AdaptiveAvgPool1d(d.one((1, 2, 3))),
    }[kind]()
    fits = kind == "conv" or x.shape[1] > 1
    turned = lambda layer, x: layer(x.mT).mT if fits else x  # noqa: E731
    return f"{kind} over time", layer, turned


def _image(d: Draw, x: torch.Tensor) -> Step:
    """A convolution, pool, norm or change of size of images."""
    channels = x.shape[1]
    kind = d.one(("conv", "max", "avg", "adaptive", "batch", "group", "resize", "shuffle", "up"))
    layer: nn.Module | None = {
        "conv": lambda: nn.Conv2d(channels, 4, 3, d.one((1, 2)), padding=1),
        "max": lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=d.often()),
        "avg": lambda: nn.AvgPool2d(2, ceil_mode=d.often(), count_include_pad=d.often()),
        "adaptive": lambda: nn.AdaptiveAvgPool2d((d.one((1, 2, 3)), 2)),
        "batch": lambda: nn.BatchNorm2d(channels),
        "group": lambda: nn.GroupNorm(d.divisor(channels), channels),
        "up": lambda: nn.ConvTranspose2d(channels, 4, 2, 2),
    }.get(kind, lambda: None)()
    mode = d.one(("nearest", "bilinear"))

    def apply(layer: Any, x: torch.Tensor) -> torch.Tensor:
        if kind == "resize":
            size = (x.size(2) + 1, max(1, x.size(3) // 2))
            return F.interpolate(x, size=size, mode=mode)
        if kind == "shuffle":
            n, c, h, w = x.shape
            return (
                x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w) if c % 2 == 0 else x
            )
        return layer(x) if min(x.shape[2:]) > 1 or kind in ("conv", "batch", "group", "up") else x

    return f"{kind} of images", layer, apply


def _pooled(d: Draw, x: torch.Tensor) -> Step:
    """All positions as one: their mean, their largest, or all of them beside each other."""
    kind = d.one(("mean", "amax", "flatten", "view"))
    if kind in ("flatten", "view"):
        return kind, None, lambda _, x: x.reshape(x.size(0), -1)
    if x.ndim == 4:
        return f"{kind} of images", None, lambda _, x: getattr(x, kind)((2, 3))
    return f"{kind} of positions", None, lambda _, x: getattr(x, kind)(1)


_OF_VECTORS = (_dense, _dense, _norm)
_OF_SEQUENCES = (
    _recurrent, _recurrent, _view, _written, _dense, _norm, _attention, _over_time, _pooled,
)  # fmt: skip
_OF_IMAGES = (_image, _image, _image, _view, _written, _pooled)


def torch_module(seed: int) -> Cell:
    """The function of a module computes what PyTorch does, of batches of two sizes."""
    words, net, x = module(seed)
    f, params = jaxeff.functional(net)
    worst = 0.0
    for size in _SIZES:
        with torch.no_grad():
            wanted = net(torch.from_numpy(x[:size].copy())).numpy()
        outputs = np.asarray(jax.jit(f)(params, x[:size]))
        if outputs.shape != wanted.shape:
            return Cell("wrong", None, f"{outputs.shape} for {wanted.shape}; {words}")
        worst = max(worst, apart(outputs, wanted))
    return Cell("right" if worst <= _EXACT else "wrong", worst, words)
