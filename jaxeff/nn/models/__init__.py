"""Small reference models: of images, sound, sequences and detections."""

from jaxeff.nn.models._dense_prediction import CellDetector as CellDetector
from jaxeff.nn.models._dense_prediction import UNet as UNet
from jaxeff.nn.models._dense_prediction import cell_targets as cell_targets
from jaxeff.nn.models._resnet import ResNet8 as ResNet8
from jaxeff.nn.models._resnet import ResNet18 as ResNet18
from jaxeff.nn.models._resnet import WideResNet as WideResNet
from jaxeff.nn.models._small import MLP as MLP
from jaxeff.nn.models._small import LeNet5 as LeNet5
from jaxeff.nn.models._small import LinenLeNet5 as LinenLeNet5
from jaxeff.nn.models._small import LinenMLP as LinenMLP
from jaxeff.nn.models._small import SmallCNN as SmallCNN
from jaxeff.nn.models._small import small_classifier as small_classifier
from jaxeff.nn.models._tiny import DSCNN as DSCNN
from jaxeff.nn.models._tiny import DenseAutoencoder as DenseAutoencoder
from jaxeff.nn.models._tiny import MobileNetV1 as MobileNetV1
from jaxeff.nn.models._transformer import EncoderBlock as EncoderBlock
from jaxeff.nn.models._transformer import TransformerEncoder as TransformerEncoder
from jaxeff.nn.models._vae import VAE as VAE
from jaxeff.nn.models._vae import negative_evidence_bound as negative_evidence_bound
from jaxeff.nn.models._vgg11 import VGG11 as VGG11
