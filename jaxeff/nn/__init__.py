"""Reference models of the source work as Flax NNX modules, one per file.

Images are NHWC; models flatten what they need to. Layers have short names (``conv1``, ``bn1``,
``fc1``), so that sites read well. Every model is built in train mode, as Flax does: call
``model.eval()`` before ``jaxeff.functional`` where it has batch norm or dropout.
"""

from jaxeff.nn.activations import ACTIVATIONS, activation
from jaxeff.nn.lenet5 import LeNet5
from jaxeff.nn.linen import LinenLeNet5, LinenMLP
from jaxeff.nn.mlp import MLP
from jaxeff.nn.resnet8 import ResNet8
from jaxeff.nn.resnet18 import ResNet18
from jaxeff.nn.small import SmallCNN, small_classifier
from jaxeff.nn.spline import SplineActivation
from jaxeff.nn.transformer import TransformerEncoder
from jaxeff.nn.vae import VAE
from jaxeff.nn.vgg11 import VGG11

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "VAE",
    "VGG11",
    "LeNet5",
    "LinenLeNet5",
    "LinenMLP",
    "ResNet8",
    "ResNet18",
    "SmallCNN",
    "SplineActivation",
    "TransformerEncoder",
    "activation",
    "small_classifier",
]
