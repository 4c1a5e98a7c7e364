"""The same networks in PyTorch, and what Torch-Pruning (arXiv 2301.12900) makes of them.

Source: Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023; github.com/VainF/
Torch-Pruning, 1.6. It is used as its documentation says: `DependencyGraph`, `MagnitudeImportance`,
a `BasePruner`; the output layer is ignored, and attention is told its heads where `heads` says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_pruning as tp
from torch import nn

from experiments.harness import Row
from experiments.pruning.wirings import WIRINGS, Wiring

Groups = frozenset[frozenset[tuple[str, int]]]


class Block(nn.Module):
    """A basic residual block."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.project = stride != 1 or inner != width
        if self.project:
            self.shortcut = nn.Conv2d(inner, width, 1, stride, bias=False)
            self.bn_shortcut = nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        """The output."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.bn_shortcut(self.shortcut(x)) if self.project else x))


class ResNet18(nn.Module):
    """`jaxeff.nn.ResNet18`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        inner = 64
        for i, width in enumerate((64, 128, 256, 512), 1):
            blocks = [Block(inner, width, 1 if i == 1 else 2), Block(width, width, 1)]
            setattr(self, f"stage{i}", nn.ModuleList(blocks))
            inner = width
        self.fc = nn.Linear(512, 10)

    def forward(self, x: Any) -> Any:
        """The output."""
        x = F.relu(self.bn1(self.conv1(x)))
        for i in range(1, 5):
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        return self.fc(x.mean((2, 3)))


def _shuffle(x: Any, groups: int) -> Any:
    b, c, h, w = x.shape
    return x.reshape(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)


def _tokens(net: Any, x: Any) -> Any:
    x = x.flatten(2).transpose(1, 2)
    return torch.cat([net.token.expand(x.shape[0], -1, -1), x], 1) + net.position


LAYERS: dict[str, Callable[..., Any]] = {
    "conv": lambda inner, out, size=1, groups=1: nn.Conv2d(
        inner, out, size, padding=size // 2, groups=groups
    ),
    "patches": lambda inner, out, size: nn.Conv2d(inner, out, size, size),
    "doubled": lambda inner, out: nn.ConvTranspose2d(inner, out, 2, 2),
    "linear": nn.Linear,
    "batch_norm": nn.BatchNorm2d,
    "layer_norm": nn.LayerNorm,
    "parameter": lambda *shape: nn.Parameter(torch.zeros(shape)),
    "lstm": lambda inner, out: nn.LSTM(inner, out, batch_first=True),
}
FUNCTIONS = SimpleNamespace(
    relu=F.relu, relu6=F.relu6, gelu=F.gelu, softmax=F.softmax, einsum=torch.einsum,
    join=lambda parts: torch.cat(parts, 1), mean=lambda x: x.mean((2, 3)),
    max_pool=lambda x: F.max_pool2d(x, 2), run=lambda rnn, x: rnn(x)[0], shuffle=_shuffle,
    tokens=_tokens,
)  # fmt: skip


class Wired(nn.Module):
    """A network of `WIRINGS`."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__()
        self.wiring = wiring
        for name, (kind, *sizes) in wiring.layers.items():
            setattr(self, name, LAYERS[kind](*sizes))

    def forward(self, x: Any) -> Any:
        """The output."""
        return self.wiring.forward(FUNCTIONS, self, x)


def measure(name: str, x: np.ndarray, *, heads: bool) -> tuple[Groups, Row]:
    """Makes groups, and takes half of every one.

    Args:
        name: A network of `networks.NAMES`.
        x: An input, as Flax has it.
        heads: Whether it is told the heads of attention; without, it has to find them.

    Returns:
        Axes of parameters that lose channels together, in Flax's names and axes (counted from the
        last); and work and parameters, with what is left of them, the error of the pruned network
        to the one with zeros where channels went, relative to the largest result, or why it failed.
    """
    torch.manual_seed(0)
    model: Any = (Wired(WIRINGS[name]) if name in WIRINGS else ResNet18()).eval()
    inputs = torch.from_numpy(x.transpose(0, 3, 1, 2).copy() if x.ndim == 4 else x)
    last: Any = model.fc if hasattr(model, "fc") else model.head
    told = {}
    if heads and hasattr(model, "query"):
        told = {model.query: 4} | dict.fromkeys((model.key, model.value), WIRINGS[name].keys)
    before, size = _macs(model, inputs), _size(model)
    row: Row = {"their_macs": before, "their_params": size}
    row |= dict.fromkeys(("their_macs_left", "their_params_left", "their_error"))
    groups: Groups = frozenset()
    try:
        groups = _groups(model, inputs, last)
        options = {"prune_head_dims": True, "num_heads": told} if told else {}
        pruner = tp.BasePruner(
            model, inputs, tp.importance.MagnitudeImportance(p=1), pruning_ratio=0.5,
            ignored_layers=[last], **options,
        )  # fmt: skip
        whole = copy.deepcopy(model)
        for group in pruner.step(interactive=True):
            _mask(whole, model, group)
            group.prune()
        row["their_error"] = _error(model, whole, inputs)
        left = {"macs": _macs(model, inputs) / before, "params": _size(model) / size}
    except Exception as failure:  # whatever it stumbles over is what is asked for
        line = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        return groups, row | {"their_error": None, "their_failure": line}
    shares = {f"their_{what}_left": share for what, share in left.items()}
    return groups, row | shares | {"their_failure": ""}


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _groups(model: nn.Module, x: Any, last: Any) -> Groups:
    graph = tp.DependencyGraph().build_dependency(model, example_inputs=x)
    names = {module: name.replace(".", "/") for name, module in model.named_modules()}
    names |= {parameter: name for name, parameter in model.named_parameters()}
    found = set()
    for group in graph.get_all_groups(ignored_layers=[last]):
        axes: set[tuple[str, int]] = set()
        for dependency, _ in group:
            module, handler = dependency.target.module, dependency.handler.__name__
            if module in names:
                axes |= _axes(names[module], module, handler)
        found.add(frozenset(axes))
    return frozenset(found)


def _mask(whole: nn.Module, model: nn.Module, group: Any) -> None:
    """Zeros in the whole network for what a group is about to lose."""
    names = {module: name for name, module in model.named_modules()}
    for dependency, indices in group:
        module, handler = dependency.target.module, dependency.handler.__name__
        made = "out_channels" in handler or "depthwise" in handler
        if module not in names or not made or isinstance(module, nn.LSTM):
            continue
        # What is left of a layer that has lost channels already: its indices have moved.
        layer: Any = whole.get_submodule(names[module])
        turned = isinstance(layer, nn.ConvTranspose2d)
        left = getattr(layer, "left", np.arange(layer.weight.shape[int(turned)]))
        gone = left[list(indices)]
        layer.left = np.delete(left, list(indices))
        with torch.no_grad():
            (layer.weight.transpose(0, 1) if turned else layer.weight)[gone] = 0
            if layer.bias is not None:
                layer.bias[gone] = 0


def _error(model: nn.Module, whole: nn.Module, x: Any) -> float:
    with torch.no_grad():
        ours, theirs = model(x), whole(x)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _axes(name: str, module: Any, handler: str) -> set[tuple[str, int]]:
    """What a layer loses, in Flax's names."""
    if isinstance(module, nn.Parameter):
        return {(name, -1)}
    if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
        return {(f"{name}/scale", -1), (f"{name}/bias", -1)}
    if isinstance(module, nn.LSTM):
        inner = {("rnn/cell/dense_i/kernel", -2)}
        state = {("rnn/cell/dense_h/kernel", -2)}
        state |= {(f"rnn/cell/dense_{k}/kernel", -1) for k in "ih"} | {
            ("rnn/cell/dense_h/bias", -1)
        }
        return inner if "in" in handler else state
    depthwise = isinstance(module, nn.Conv2d) and module.groups == module.out_channels > 1
    if "in_channels" in handler and not depthwise:
        return {(f"{name}/kernel", -2)}
    bias = {(f"{name}/bias", -1)} if module.bias is not None else set()
    return {(f"{name}/kernel", -1)} | bias


def _macs(model: nn.Module, x: Any) -> int:
    """Multiply-accumulates of its layers with weights."""
    total = 0

    def count(module: Any, inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(module, nn.LSTM):
            own = sum(p.numel() for n, p in module.named_parameters() if "weight" in n)
            total += inputs[0].shape[1] * own
        elif isinstance(module, nn.ConvTranspose2d):
            total += module.weight.numel() * inputs[0].numel() // module.in_channels
        elif isinstance(module, nn.Conv2d | nn.Linear):
            width = module.weight.shape[0]
            total += module.weight.numel() * output.numel() // width

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return total
