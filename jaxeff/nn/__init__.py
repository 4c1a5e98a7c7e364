"""Reference models as Flax NNX modules, features of sound, decoders of text, classifiers of files.

Images are NHWC; models flatten what they need to. Layers have short names (``conv1``, ``bn1``,
``fc1``), so that sites read well. Every model is built in train mode, as Flax does: call
``model.eval()`` before ``jaxeff.functional`` where it has batch norm or dropout.
"""

from jaxeff.nn._decoder import Decoder, DecoderCache, DecoderConfig, smollm2_135m
from jaxeff.nn._log_mel import LogMel, hann, mel_filters
from jaxeff.nn._magika import Magika, PretrainedMagika, file_tokens, load_magika
from jaxeff.nn._pretrained import PretrainedDecoder, Tokenizer, load_decoder, load_tokenizer
from jaxeff.nn._sampling import generate, sample
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
    "Decoder",
    "DecoderCache",
    "DecoderConfig",
    "LeNet5",
    "LinenLeNet5",
    "LinenMLP",
    "LogMel",
    "Magika",
    "PretrainedDecoder",
    "PretrainedMagika",
    "ResNet8",
    "ResNet18",
    "SmallCNN",
    "SplineActivation",
    "Tokenizer",
    "TransformerEncoder",
    "WideResNet",
    "activation",
    "file_tokens",
    "generate",
    "hann",
    "load_decoder",
    "load_magika",
    "load_tokenizer",
    "mel_filters",
    "sample",
    "small_classifier",
    "smollm2_135m",
]
