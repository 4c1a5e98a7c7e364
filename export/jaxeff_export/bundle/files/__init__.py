"""Reads and writes what a bundle consists of: its manifest, its arrays, its recorded self-check."""

from jaxeff_export.bundle.files._arrays import pack_arrays, unpack_arrays
from jaxeff_export.bundle.files._folder import BundleFolder
from jaxeff_export.bundle.files._manifest import (
    ARTIFACT,
    DERIVED,
    FILES,
    LIBRARY,
    MANIFEST,
    PARAMETERS,
    PROGRAM,
    SELFCHECK,
    BundleError,
    Manifest,
    own_files,
)
from jaxeff_export.bundle.files._selfcheck import RecordedPair, SelfCheck, compare, tolerance

__all__ = [
    "ARTIFACT",
    "DERIVED",
    "FILES",
    "LIBRARY",
    "MANIFEST",
    "PARAMETERS",
    "PROGRAM",
    "SELFCHECK",
    "BundleError",
    "BundleFolder",
    "Manifest",
    "RecordedPair",
    "SelfCheck",
    "compare",
    "own_files",
    "pack_arrays",
    "tolerance",
    "unpack_arrays",
]
