"""Reads and writes what a bundle consists of: its manifest, its arrays, its recorded self-check."""

from jaxeff_export.bundle.files._arrays import DataCheck as DataCheck
from jaxeff_export.bundle.files._arrays import RecordedPair as RecordedPair
from jaxeff_export.bundle.files._arrays import SelfCheck as SelfCheck
from jaxeff_export.bundle.files._arrays import compare as compare
from jaxeff_export.bundle.files._arrays import compare_data as compare_data
from jaxeff_export.bundle.files._arrays import pack_arrays as pack_arrays
from jaxeff_export.bundle.files._arrays import tolerance as tolerance
from jaxeff_export.bundle.files._arrays import unpack_arrays as unpack_arrays
from jaxeff_export.bundle.files._folder import ARTIFACT as ARTIFACT
from jaxeff_export.bundle.files._folder import DERIVED as DERIVED
from jaxeff_export.bundle.files._folder import FILES as FILES
from jaxeff_export.bundle.files._folder import LIBRARY as LIBRARY
from jaxeff_export.bundle.files._folder import MANIFEST as MANIFEST
from jaxeff_export.bundle.files._folder import PARAMETERS as PARAMETERS
from jaxeff_export.bundle.files._folder import PROGRAM as PROGRAM
from jaxeff_export.bundle.files._folder import SELFCHECK as SELFCHECK
from jaxeff_export.bundle.files._folder import TOKENIZER as TOKENIZER
from jaxeff_export.bundle.files._folder import UNPACKED as UNPACKED
from jaxeff_export.bundle.files._folder import BundleError as BundleError
from jaxeff_export.bundle.files._folder import BundleFolder as BundleFolder
from jaxeff_export.bundle.files._folder import Manifest as Manifest
from jaxeff_export.bundle.files._folder import own_files as own_files
from jaxeff_export.bundle.files._folder import pack_tokenizer as pack_tokenizer
from jaxeff_export.bundle.files._folder import unpack_tokenizer as unpack_tokenizer
