"""``jaxeff-export``, and ``python -m jaxeff_export``."""

from __future__ import annotations

import sys

from jaxeff_export.targets import MissingExtraError, require_extra


def main() -> None:
    """Runs the command; without typer, one line says what to install."""
    try:
        require_extra("typer", "jaxeff-export")
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    # After the check: the commands are made with typer.
    from jaxeff_export.cli import app

    app(prog_name="jaxeff-export")


if __name__ == "__main__":
    main()
