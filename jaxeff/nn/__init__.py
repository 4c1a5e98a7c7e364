"""Reference models as Flax NNX modules, and features of sound.

Images are NHWC; models flatten what they need to. Layers have short names (``conv1``, ``bn1``,
``fc1``), so that sites read well. Every model is built in train mode, as Flax does: call
``model.eval()`` before ``jaxeff.functional`` where it has batch norm or dropout.
"""

from jaxeff.nn._log_mel import LogMel as LogMel
from jaxeff.nn._log_mel import hann as hann
from jaxeff.nn._log_mel import log_mel as log_mel
from jaxeff.nn._log_mel import mel_filters as mel_filters
from jaxeff.nn.layers import ACTIVATIONS as ACTIVATIONS
from jaxeff.nn.layers import SplineActivation as SplineActivation
from jaxeff.nn.layers import activation as activation
from jaxeff.nn.models import DSCNN as DSCNN
from jaxeff.nn.models import MLP as MLP
from jaxeff.nn.models import VAE as VAE
from jaxeff.nn.models import VGG11 as VGG11
from jaxeff.nn.models import CellDetector as CellDetector
from jaxeff.nn.models import DenseAutoencoder as DenseAutoencoder
from jaxeff.nn.models import LeNet5 as LeNet5
from jaxeff.nn.models import LinenLeNet5 as LinenLeNet5
from jaxeff.nn.models import LinenMLP as LinenMLP
from jaxeff.nn.models import MobileNetV1 as MobileNetV1
from jaxeff.nn.models import ResNet8 as ResNet8
from jaxeff.nn.models import ResNet18 as ResNet18
from jaxeff.nn.models import SmallCNN as SmallCNN
from jaxeff.nn.models import TransformerEncoder as TransformerEncoder
from jaxeff.nn.models import UNet as UNet
from jaxeff.nn.models import WideResNet as WideResNet
from jaxeff.nn.models import cell_targets as cell_targets
from jaxeff.nn.models import small_classifier as small_classifier
