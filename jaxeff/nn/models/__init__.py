"""Small reference models: MLP, LeNet-5, ResNets, wide ones, VGG-11, a transformer, a VAE."""

from jaxeff.nn.models._resnet import ResNet8, ResNet18, WideResNet
from jaxeff.nn.models._small import MLP, LeNet5, LinenLeNet5, LinenMLP, SmallCNN, small_classifier
from jaxeff.nn.models._transformer import EncoderBlock, TransformerEncoder
from jaxeff.nn.models._vae import VAE, negative_evidence_bound
from jaxeff.nn.models._vgg11 import VGG11

__all__ = [
    "MLP",
    "VAE",
    "VGG11",
    "EncoderBlock",
    "LeNet5",
    "LinenLeNet5",
    "LinenMLP",
    "ResNet8",
    "ResNet18",
    "SmallCNN",
    "TransformerEncoder",
    "WideResNet",
    "negative_evidence_bound",
    "small_classifier",
]
