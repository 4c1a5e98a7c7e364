"""Reference models as Flax NNX modules, and features of sound.

Images are NHWC; models flatten what they need to. Layers have short names (``conv1``, ``bn1``,
``fc1``), so that sites read well. Every model is built in train mode, as Flax does: call
``model.eval()`` before ``jaxeff.functional`` where it has batch norm or dropout.
"""

from jaxeff.nn._log_mel import LogMel, hann, log_mel, mel_filters
from jaxeff.nn.layers import ACTIVATIONS, SplineActivation, activation
from jaxeff.nn.models import (
    MLP,
    VAE,
    VGG11,
    LeNet5,
    LinenLeNet5,
    LinenMLP,
    ResNet8,
    ResNet18,
    SmallCNN,
    TransformerEncoder,
    WideResNet,
    small_classifier,
)

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "VAE",
    "VGG11",
    "LeNet5",
    "LinenLeNet5",
    "LinenMLP",
    "LogMel",
    "ResNet8",
    "ResNet18",
    "SmallCNN",
    "SplineActivation",
    "TransformerEncoder",
    "WideResNet",
    "activation",
    "hann",
    "log_mel",
    "mel_filters",
    "small_classifier",
]
