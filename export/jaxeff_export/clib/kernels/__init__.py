"""Turns a compiled module into C kernels: entry points, working memory, the calls between them."""

from jaxeff_export.clib.kernels._kernels import CKernel, compile_kernels
from jaxeff_export.clib.kernels._memory import Memory, plan
from jaxeff_export.clib.kernels._program import KernelProgram, program_of, with_views

__all__ = [
    "CKernel",
    "KernelProgram",
    "Memory",
    "compile_kernels",
    "plan",
    "program_of",
    "with_views",
]
