"""``python -m jaxeff_export``."""

from jaxeff_export.cli import app

app(prog_name="jaxeff-export")
