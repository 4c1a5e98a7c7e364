"""Photonic layers: pooling, weights and encodings made of chaotic light."""

from jaxeff.photonics.elements._chaotic_light import ChaoticLight
from jaxeff.photonics.elements._element import PhotonicElement, ReadElement
from jaxeff.photonics.elements._encoding import noise_for
from jaxeff.photonics.elements._pooling import (
    gaussian_noise,
    physical_sample,
    pooling_of,
    probabilistic_pooling,
    quant_relu,
)
from jaxeff.photonics.elements._product import PhotonicProduct
from jaxeff.photonics.elements._weights import PhotonicWeights, transmissions

__all__ = [
    "ChaoticLight",
    "PhotonicElement",
    "PhotonicProduct",
    "PhotonicWeights",
    "ReadElement",
    "gaussian_noise",
    "noise_for",
    "physical_sample",
    "pooling_of",
    "probabilistic_pooling",
    "quant_relu",
    "transmissions",
]
