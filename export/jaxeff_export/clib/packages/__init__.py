"""Packages of a C library for build systems, and its header for C++.

A package is the library's folder with a few files more, which describe it to one build system:
nothing is compiled again, and the example beside it stays as it was.
"""

from jaxeff_export.clib.packages._cpp import cpp_header
from jaxeff_export.clib.packages._package import Package
from jaxeff_export.clib.packages._styles import STYLES, facts_of, package_files, require_style

__all__ = ["STYLES", "Package", "cpp_header", "facts_of", "package_files", "require_style"]
