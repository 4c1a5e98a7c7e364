"""Artifacts: functions lowered to StableHLO, and what goes in and out of them written down."""

from jaxeff_export.artifact._archive import (
    MOST_TEXT,
    add_checksum,
    digest,
    max_inflated_size,
    require_member,
    verify_checksum,
    version_complaint,
)
from jaxeff_export.artifact._artifact import Artifact, ArtifactError, export, package_versions
from jaxeff_export.artifact._forms import COUNT, SPEC, MappingOf, require_form
from jaxeff_export.artifact._signature import (
    SignatureError,
    TensorSpec,
    argument_names,
    batch_of,
    check_array,
    check_leaves,
    dtype_of,
    flatten_named,
    specs_from_json,
    with_batch,
)
from jaxeff_export.artifact._state import belongs, state_places
from jaxeff_export.artifact._structure import (
    Description,
    count_leaves,
    rebuild,
    require_structure,
)

__all__ = [
    "COUNT",
    "MOST_TEXT",
    "SPEC",
    "Artifact",
    "ArtifactError",
    "Description",
    "MappingOf",
    "SignatureError",
    "TensorSpec",
    "add_checksum",
    "argument_names",
    "batch_of",
    "belongs",
    "check_array",
    "check_leaves",
    "count_leaves",
    "digest",
    "dtype_of",
    "export",
    "flatten_named",
    "max_inflated_size",
    "package_versions",
    "rebuild",
    "require_form",
    "require_member",
    "require_structure",
    "specs_from_json",
    "state_places",
    "verify_checksum",
    "version_complaint",
    "with_batch",
]
