"""``prepare``: what the emulated board needs."""

from __future__ import annotations

from jaxeff_export.cli._terminal import console, failures_in_one_line


def prepare() -> None:
    """Download what the emulated board needs (150 MB), once per version of TVM."""
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.boards import emulated

        emulated.prepare(progress=console.print)
