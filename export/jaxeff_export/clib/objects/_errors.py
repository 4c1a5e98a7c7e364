"""Error of C libraries."""


class CLibraryError(RuntimeError):
    """A function, a target or a memory that a C library can't be made for."""
