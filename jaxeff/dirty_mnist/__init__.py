"""Dirty-MNIST: MNIST with digits that are truly ambiguous (Mukhoti et al. 2021, arXiv 2102.11582).

`dirty_mnist` builds it on the first call (about ten minutes), and reads it from a cache afterwards;
`DirtyMNIST.train` are MNIST's images and labels, and each ambiguous image once per label.

The ambiguous images are made here, from MNIST, by the published recipe: a variational autoencoder
decodes convex mixtures of the codes of two to four digits of distinct classes, and an ensemble of
five LeNets keeps the images on which its members agree that several classes are possible (low
mutual information, high entropy) and draws their labels. So a model can be uncertain about them
for no other reason than the data: aleatoric uncertainty that no training removes.

Sharp edge: these are not the published images, so figures compare with those on them only roughly.
"""

from jaxeff.dirty_mnist._build import dirty_mnist
from jaxeff.dirty_mnist._recipe import (
    DirtyMNIST,
    Recipe,
    balance_entropy,
    draw_labels,
    is_ambiguous,
    mix_codes,
    stretch_contrast,
)

__all__ = [
    "DirtyMNIST",
    "Recipe",
    "balance_entropy",
    "dirty_mnist",
    "draw_labels",
    "is_ambiguous",
    "mix_codes",
    "stretch_contrast",
]
