"""LeNet-5 in Brevitas, from the weights of ours; needs torch and brevitas."""

from typing import Any

import brevitas.nn as qnn
import numpy as np
import torch
from brevitas.inject.enum import ScalingImplType, StatsOp
from brevitas.quant import (
    Int8ActPerTensorFloat,
    Int8WeightPerTensorFloat,
    SignedBinaryWeightPerTensorConst,
    Uint8ActPerTensorFloat,
)

from experiments.trainable import Images

COLLECTED = 30
"""Batches that the steps of activations start from."""


def train(
    method: str, params: Any, images: Images, seed: int, epochs: int, batch_size: int, rate: float
) -> float:
    """Test accuracy after training on by a method of `peers`, by Adam with a cosine as there.

    It begins at the float network's parameters, as numpy arrays; steps have a tenth of the rate.
    """
    torch.manual_seed(seed)
    net = Net(method, params)
    steps = [p for name, p in net.named_parameters() if "scaling" in name]
    others = [p for name, p in net.named_parameters() if "scaling" not in name]
    groups = [{"params": others, "lr": rate}, {"params": steps, "lr": rate / 10}]
    optimizer = torch.optim.Adam(groups)
    x, y = (torch.as_tensor(np.array(part)) for part in images.train)
    batches = len(y) // batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(y))
        for i in range(batches):
            chosen = order[i * batch_size : (i + 1) * batch_size]
            loss = torch.nn.functional.cross_entropy(net(x[chosen]), y[chosen].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
    x, y = (torch.as_tensor(np.array(part)) for part in images.test)
    with torch.no_grad():
        right = sum(
            int((net(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum())
            for i in range(0, len(y), 500)
        )
    return right / len(y)


class _LearnedWeights(Int8WeightPerTensorFloat):  # type: ignore[misc]
    scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS


class _BinaryWeights(SignedBinaryWeightPerTensorConst):  # type: ignore[misc]
    scaling_impl_type = ScalingImplType.PARAMETER_FROM_STATS
    scaling_stats_op = StatsOp.AVE


class Net(torch.nn.Module):
    """LeNet-5 with max-pooling and same-padding; every layer's input and weights are quantized."""

    def __init__(self, method: str, params: Any):
        super().__init__()
        name, _, bits = method.rpartition(" ")
        weights: dict[str, Any]
        if name == "binary":
            weights, self.acts = {"weight_quant": _BinaryWeights}, None
        else:
            quantizer = _LearnedWeights if name == "lsq" else Int8WeightPerTensorFloat
            weights = {"weight_quant": quantizer, "weight_bit_width": int(bits)}
            act = {"bit_width": int(bits), "collect_stats_steps": COLLECTED}
            kinds = [Int8ActPerTensorFloat] + 4 * [Uint8ActPerTensorFloat]
            self.acts = torch.nn.ModuleList(
                [qnn.QuantIdentity(act_quant=kind, **act) for kind in kinds]
            )
        layers = []
        for site in ("conv1", "conv2", "fc1", "fc2", "fc3"):
            kernel = np.array(params[site]["kernel"])
            bias = torch.as_tensor(np.array(params[site]["bias"]))
            if kernel.ndim == 4:
                kernel = kernel.transpose(3, 2, 0, 1)
                out, into, side, _ = kernel.shape
                padding = 2 if site == "conv1" else 0
                layer: Any = qnn.QuantConv2d(into, out, side, padding=padding, bias=True, **weights)
            else:
                kernel = kernel.T
                layer = qnn.QuantLinear(kernel.shape[1], kernel.shape[0], bias=True, **weights)
            # In place of loading: steps start from the weights that are there.
            state = layer.state_dict()
            state |= {"weight": torch.as_tensor(kernel.copy()), "bias": bias}
            layer.load_state_dict(state, strict=False)
            layer.weight_quant.init_tensor_quant()  # the step was that of the random weights
            layers.append(layer)
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        """Logits of images, channels last."""
        x = x.permute(0, 3, 1, 2)
        for i, layer in enumerate(self.layers):
            if i == 2:  # flattened with channels last, as the weights expect
                x = x.permute(0, 2, 3, 1).flatten(1)
            if self.acts is not None:
                x = self.acts[i](x)
            x = layer(x)
            if i < len(self.layers) - 1:
                x = torch.relu(x)
            if i < 2:
                x = torch.nn.functional.max_pool2d(x, 2)
        return x
