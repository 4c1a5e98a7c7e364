"""One rule per operation of StableHLO, a file per family of operations."""

from jaxeff_export.importer.rules import _contraction as contraction
from jaxeff_export.importer.rules import _control as control
from jaxeff_export.importer.rules import _convolution as convolution
from jaxeff_export.importer.rules import _fourier as fourier
from jaxeff_export.importer.rules import _indexing as indexing
from jaxeff_export.importer.rules import _random_bits as random_bits
from jaxeff_export.importer.rules import _reduction as reduction
from jaxeff_export.importer.rules import _scattering as scattering
from jaxeff_export.importer.rules import _shapes as shapes
from jaxeff_export.importer.rules import _sorting as sorting
from jaxeff_export.importer.rules._complex_numbers import rewrite
from jaxeff_export.importer.rules._custom_calls import is_annotation, node_name

__all__ = [
    "contraction",
    "control",
    "convolution",
    "fourier",
    "indexing",
    "is_annotation",
    "node_name",
    "random_bits",
    "reduction",
    "rewrite",
    "scattering",
    "shapes",
    "sorting",
]
