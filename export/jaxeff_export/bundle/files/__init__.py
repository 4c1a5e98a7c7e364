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
    TOKENIZER,
    BundleError,
    Manifest,
    own_files,
)
from jaxeff_export.bundle.files._selfcheck import RecordedPair, SelfCheck, compare, tolerance
from jaxeff_export.bundle.files._tokenizer import pack_tokenizer, unpack_tokenizer

__all__ = [
    "ARTIFACT",
    "DERIVED",
    "FILES",
    "LIBRARY",
    "MANIFEST",
    "PARAMETERS",
    "PROGRAM",
    "SELFCHECK",
    "TOKENIZER",
    "BundleError",
    "BundleFolder",
    "Manifest",
    "RecordedPair",
    "SelfCheck",
    "compare",
    "own_files",
    "pack_arrays",
    "pack_tokenizer",
    "tolerance",
    "unpack_arrays",
    "unpack_tokenizer",
]
