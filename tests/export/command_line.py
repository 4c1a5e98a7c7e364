"""Commands of `jaxeff-export`, run in this process."""

from jaxeff_export.cli import app
from typer.testing import CliRunner


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result, message):
    """Whether a command failed with one line that says so."""
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    return True
