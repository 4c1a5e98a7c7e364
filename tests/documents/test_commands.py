"""Every command that the documentation shows exists, and takes the options shown with it.

Nothing is run but parsers: ``jaxeff-export`` parses the line itself, a module its ``--help``.
"""

import contextlib
import functools
import importlib.util
import io
import re
import runpy
import shlex
import sys
import tomllib

import pytest
import typer
from documents import ROOT, Text, texts
from jaxeff_export.cli import app

START = r"(?:python3?|\S*/python) -m \w|jaxeff-export \w|python run\.py|\S*/pip install|pip install"
INLINE = re.compile(rf"`((?:{START})[^`]*)`")
ON_LINES = re.compile(rf"^ *(?:\$ |.*; |.*&& )?((?:{START}).*)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"<\w+>|\[--|\.$")
"""Of a command that stands for several, such as ``python -m experiments.<name> --help``."""


def commands(text: Text) -> list[str]:
    """The commands of a text; a line that chains several with && is several."""
    wrong = [" ".join(span.split()) for span in INLINE.findall(text.markdown)]
    prose = re.sub(r"`[^`]*`", "", text.markdown)
    for line in ON_LINES.findall(prose):
        line = re.split(r"\s{2,}|\s#", line)[0]  # a remark after it
        wrong += [part.strip() for part in line.split("&&")]
    return list(dict.fromkeys(wrong))


@functools.cache
def help_of(module: str) -> str:
    """What ``python -m module --help`` prints, from its parser in this process."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr("sys.argv", [module, "--help"])
        importlib.util.find_spec(module)  # imports its package
        for name in (module, f"{module}.__main__"):  # runpy warns of one that is imported
            patch.delitem(sys.modules, name, raising=False)
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert end.value.code in (0, None)
    return printed.getvalue()


def check_own(arguments: list[str]) -> None:
    """Parse a line of ``jaxeff-export`` as far as its command's own arguments."""
    group = typer.main.get_command(app)
    try:
        context = group.make_context("jaxeff-export", arguments[:0], resilient_parsing=True)
        if arguments not in ([], ["--help"]):
            _, command, rest = group.resolve_command(context, arguments)
            command.make_context(arguments[0], rest, parent=context, resilient_parsing=False)
    except Exception as error:  # its parser's classes are private
        raise AssertionError(f"jaxeff-export {shlex.join(arguments)}: {error}") from error


def check(command: str) -> None:
    words = shlex.split(command)
    if "install" in words:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"\.\[([\w,]+)\]", command):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), command
        return
    if words[0] == "jaxeff-export" or words[1:3] == ["-m", "jaxeff_export"]:
        check_own(words[1:] if words[0] == "jaxeff-export" else words[3:])
        return
    if words[1] == "run.py":
        shown = help_of("jaxeff_export.runtime._device_runner")
    else:
        assert importlib.util.find_spec(words[2]) is not None, f"there is no module {words[2]}"
        if words[2] in ("venv", "pip", "pytest"):
            return
        shown = help_of(words[2]) if any(w.startswith("--") for w in words) else ""
    for option in re.findall(r"--[\w-]+", command):
        assert option in shown, f"{command}: {option} is none of its options:\n{shown}"


WORDS = START.replace(r"\S*/", "")  # the same texts, ten times as fast to search for
SHOWN = {command: text.name for text in texts(WORDS) for command in commands(text)}


def test_commands_are_found():
    assert {"jaxeff-export check lenet --board emulated", "python -m experiments.latency"} <= set(
        SHOWN
    )


@pytest.mark.parametrize("command", [c for c in SHOWN if not PLACEHOLDER.search(c)])
def test_command_exists(command):
    check(command)


@pytest.mark.parametrize(
    "command",
    [c for c in SHOWN if "[--" in c and "<" not in c],
)
def test_usage_names_options_that_exist(command):
    check(re.sub(r"[\[\]|]|\.\.\.", " ", command))


@pytest.mark.parametrize(
    "wrong",
    [
        "python -m experiments.no_such_study",
        "python -m experiments.latency --no-such-option",
        "jaxeff-export no-such-command lenet",
        "jaxeff-export check lenet --no-such-option",
        'pip install -e ".[no_such_extra]"',
    ],
)
def test_what_does_not_exist_is_found(wrong):
    with pytest.raises(AssertionError):
        check(wrong)
