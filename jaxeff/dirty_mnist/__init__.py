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

from jaxeff.dirty_mnist._build import dirty_mnist as dirty_mnist
from jaxeff.dirty_mnist._recipe import DirtyMNIST as DirtyMNIST
from jaxeff.dirty_mnist._recipe import Recipe as Recipe
from jaxeff.dirty_mnist._recipe import balance_entropy as balance_entropy
from jaxeff.dirty_mnist._recipe import draw_labels as draw_labels
from jaxeff.dirty_mnist._recipe import is_ambiguous as is_ambiguous
from jaxeff.dirty_mnist._recipe import mix_codes as mix_codes
from jaxeff.dirty_mnist._recipe import stretch_contrast as stretch_contrast
