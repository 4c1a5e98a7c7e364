"""Small reference models: MLP, LeNet-5, ResNets, wide ones, VGG-11, a transformer, a VAE."""

from jaxeff.nn.models._lenet5 import LeNet5
from jaxeff.nn.models._linen import LinenLeNet5, LinenMLP
from jaxeff.nn.models._mlp import MLP
from jaxeff.nn.models._resnet8 import ResNet8
from jaxeff.nn.models._resnet18 import ResNet18
from jaxeff.nn.models._small import SmallCNN, small_classifier
from jaxeff.nn.models._transformer import EncoderBlock, TransformerEncoder
from jaxeff.nn.models._vae import VAE, negative_evidence_bound
from jaxeff.nn.models._vgg11 import VGG11
from jaxeff.nn.models._wide_resnet import WideResNet

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
