"""Linear algebra: what StableHLO has of it, and what JAX asks of LAPACK by custom calls.

Every algorithm is a kernel written with ``loops``, by LAPACK's conventions.
"""

from . import cholesky, eigen, householder, lu, singular, triangular

__all__ = ["cholesky", "eigen", "householder", "lu", "singular", "triangular"]
