"""One rule per operation of StableHLO, and per custom call of LAPACK; a file per family.

Rules register themselves when their file is imported, so all are imported here.
"""

from jaxeff_export.importer.rules import _contraction as contraction  # noqa: F401
from jaxeff_export.importer.rules import _control as control  # noqa: F401
from jaxeff_export.importer.rules import _eigen as eigen  # noqa: F401
from jaxeff_export.importer.rules import _factorizations as factorizations  # noqa: F401
from jaxeff_export.importer.rules import _fourier as fourier  # noqa: F401
from jaxeff_export.importer.rules import _indexing as indexing  # noqa: F401
from jaxeff_export.importer.rules import _random_bits as random_bits  # noqa: F401
from jaxeff_export.importer.rules import _reduction as reduction  # noqa: F401
from jaxeff_export.importer.rules import _singular as singular  # noqa: F401
from jaxeff_export.importer.rules import _sorting as sorting  # noqa: F401
from jaxeff_export.importer.rules._complex_numbers import rewrite as rewrite
