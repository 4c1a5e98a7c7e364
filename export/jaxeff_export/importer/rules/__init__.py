"""One rule per operation of StableHLO, and per custom call of LAPACK; a file per family.

Rules register themselves when their file is imported, so all are imported here.
"""

from jaxeff_export.importer.rules import _contraction as contraction
from jaxeff_export.importer.rules import _control as control
from jaxeff_export.importer.rules import _eigen as eigen
from jaxeff_export.importer.rules import _factorizations as factorizations
from jaxeff_export.importer.rules import _fourier as fourier
from jaxeff_export.importer.rules import _indexing as indexing
from jaxeff_export.importer.rules import _random_bits as random_bits
from jaxeff_export.importer.rules import _reduction as reduction
from jaxeff_export.importer.rules import _singular as singular
from jaxeff_export.importer.rules import _sorting as sorting
from jaxeff_export.importer.rules._complex_numbers import rewrite

__all__ = [
    "contraction",
    "control",
    "eigen",
    "factorizations",
    "fourier",
    "indexing",
    "random_bits",
    "reduction",
    "rewrite",
    "singular",
    "sorting",
]
