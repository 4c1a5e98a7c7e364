"""Pyro's `Predictive` on PyTorch, as the thesis measures its sampled networks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.nn.functional import max_pool2d

from experiments.engines import fresh_pyro
from experiments.latency.networks import CLASSES, SAMPLES, Subject


def predictive(net: Subject, threads: int) -> Callable[[], Any]:
    """A call of 30 samples by an `AutoNormal` guide."""
    fresh_pyro(threads)
    x = torch.tensor(np.moveaxis(np.asarray(net.x), -1, 1) if net.x.ndim == 4 else np.array(net.x))
    model = {"mlp": Mlp, "lenet5": LeNet5}[net.model]()
    guide = AutoNormal(model)
    guide(x, torch.zeros(net.batch))
    predictive = Predictive(model, guide=guide, num_samples=SAMPLES, return_sites=("_RETURN",))

    def call() -> Any:
        with torch.no_grad():
            return predictive(x)

    if (shape := call()["_RETURN"].shape) != (SAMPLES, net.batch, CLASSES):
        raise ValueError(f"Pyro predicts logits of shape {tuple(shape)}")
    return call


class Classifier(PyroModule):
    """Logits of `features`, every weight and bias normal beforehand."""

    def __init__(self, **layers: nn.Module):
        super().__init__()
        for name, layer in layers.items():
            PyroModule[type(layer)]  # registers the class that `to_pyro_module_` turns it into
            setattr(self, name, layer)
        pyro.nn.module.to_pyro_module_(self)
        for layer in self.children():
            for name, value in list(layer.named_parameters(recurse=False)):
                normal = dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.dim())
                setattr(layer, name, PyroSample(normal))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The network up to its logits."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """The model: logits, and labels drawn from them."""
        logits = self.features(x)
        with pyro.plate("data", len(x)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
        return logits


class Mlp(Classifier):
    """784-100-100-10."""

    def __init__(self) -> None:
        super().__init__(
            fc1=nn.Linear(784, 100), fc2=nn.Linear(100, 100), fc3=nn.Linear(100, CLASSES)
        )

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class LeNet5(Classifier):
    """LeNet-5, `conv1` padded to keep its size."""

    def __init__(self) -> None:
        super().__init__(
            conv1=nn.Conv2d(1, 6, 5, padding=2), conv2=nn.Conv2d(6, 16, 5),
            fc1=nn.Linear(400, 120), fc2=nn.Linear(120, 84), fc3=nn.Linear(84, CLASSES),
        )  # fmt: skip

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))
