"""``jaxeff-export``, and ``python -m jaxeff_export``."""

import io
import sys

from jaxeff_export.targets import MissingExtraError, require_extra


def main() -> None:
    """Runs the command; without typer, one line says what to install."""
    if sys.stdout is None:
        sys.exit("error: standard output is closed; redirect it, such as to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files may be bytes of no character, and some terminals lack most characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        require_extra("typer", "jaxeff-export")
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    # After the check: the commands are made with typer.
    from jaxeff_export.cli import app

    try:
        app(prog_name="jaxeff-export")
    except OSError as error:  # of what typer itself writes, such as --help
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
