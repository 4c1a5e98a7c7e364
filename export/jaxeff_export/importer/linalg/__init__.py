"""Linear algebra: StableHLO's operations, and JAX's custom calls of LAPACK.

Every algorithm is a kernel written with ``loops``, by LAPACK's conventions.
"""

from jaxeff_export.importer.linalg import _cholesky as cholesky
from jaxeff_export.importer.linalg import _eigen as eigen
from jaxeff_export.importer.linalg import _householder as householder
from jaxeff_export.importer.linalg import _lu as lu
from jaxeff_export.importer.linalg import _singular as singular
from jaxeff_export.importer.linalg import _triangular as triangular

__all__ = ["cholesky", "eigen", "householder", "lu", "singular", "triangular"]
