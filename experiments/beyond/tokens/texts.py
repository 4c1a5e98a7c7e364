"""Texts in and out of domain: docstrings that come with Python, and what they aren't."""

import ast
import inspect
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

LEARNT = (
    "_pydecimal", "argparse", "asyncio.base_events", "asyncio.events", "asyncio.streams",
    "calendar", "cmd", "codecs", "collections", "concurrent.futures._base", "configparser",
    "contextlib", "csv", "difflib", "doctest", "email.header", "email.message", "fractions",
    "functools", "heapq", "http.client", "http.cookiejar", "imaplib", "importlib.abc", "inspect",
    "ipaddress", "logging", "logging.handlers", "mailbox", "nntplib", "optparse", "os", "pickle",
    "pickletools", "platform", "poplib", "random", "shutil", "smtplib", "socket", "socketserver",
    "ssl", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading",
    "traceback", "turtle", "typing", "unittest.case", "unittest.mock", "urllib.request", "warnings",
    "weakref", "xmlrpc.client", "xmlrpc.server",
)  # fmt: skip
HELD_OUT = ("bdb", "datetime", "_pydatetime", "enum", "ftplib", "pathlib", "queue", "sched",
            "selectors", "shelve", "telnetlib", "zipfile")  # fmt: skip

FACTS = """
The tuatara of New Zealand has a third eye under the scales of its forehead.
Bouvet Island, which Norway owns, lies farther from any other land than every other island.
In 1904 the marathon of Saint Louis was won by a man whose trainers gave him strychnine.
The quagga, half a zebra by its stripes, was last seen alive in the zoo of Amsterdam in 1883.
Salt from the mine of Wieliczka was carved into chandeliers by the miners themselves.
The town of Hum in Istria has about thirty inhabitants and a wall around them.
A teaspoon of honey is the life's work of about a dozen bees.
The painter Mary Delany began her paper flowers at the age of seventy two.
Lake Baikal holds about a fifth of the fresh water in all lakes and rivers.
The theremin is played without being touched, by moving hands in front of two antennas.
"""

OTHER_LANGUAGES = """
Der Zug nach Norden hat heute wieder zwanzig Minuten Verspätung, und niemand weiß warum.
Am Abend saßen wir lange am Fluss und sprachen über die Bücher unserer Kindheit.
La boulangère ouvre sa porte avant le lever du soleil, quand la rue dort encore.
Nous avons cherché la clé partout, mais elle était restée dans la poche du manteau.
El mercado se llena de gente los sábados, y el olor del pan llega hasta la plaza.
Mi abuela guardaba las cartas en una caja de madera que nadie podía abrir.
Il treno attraversa la valle lentamente, e dal finestrino si vedono i vigneti.
Ho dimenticato l'ombrello a casa, così ho aspettato sotto il portico che smettesse.
De fietsers wachten bij de brug tot het schip eindelijk voorbij is gevaren.
W zimie jezioro zamarza, a dzieci z całej wsi przychodzą na łyżwy.
O pescador remenda as redes na areia enquanto o filho conta os barcos.
Kun lumi sulaa, metsän polut täyttyvät vedestä ja sammakoiden äänistä.
På torget säljer man blåbär och nybakat bröd, fast regnet aldrig slutar.
A kertben alma és körte terem, de a diófa idén nem hozott semmit.
Bahçedeki kedi her sabah aynı saatte pencerenin önüne gelip bekliyor.
"""


def _trees(modules: Iterable[str]) -> list[ast.Module]:
    """Reads the sources of those modules that this version of Python has."""
    files = [spec.origin for name in modules if (spec := find_spec(name)) and spec.has_location]
    return [ast.parse(Path(file).read_text("utf-8")) for file in files if file]


def _documented(tree: ast.Module) -> list[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node)]


def docstrings(modules: Iterable[str]) -> str:
    """Joins the docstrings of modules of the standard library."""
    nodes = (node for tree in _trees(modules) for node in _documented(tree))
    return "\n\n".join(inspect.cleandoc(ast.get_docstring(node)) for node in nodes)  # type: ignore


def source_code(modules: Iterable[str]) -> str:
    """Joins the code of modules of the standard library, without its docstrings and comments."""
    trees = _trees(modules)
    for tree in trees:
        for node in _documented(tree):
            node.body = node.body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return "\n\n".join(map(ast.unparse, trees))


def texts() -> dict[str, str]:
    """Gives every text: what is learnt, what is like it, and what isn't, each by its name."""
    held_out = docstrings(HELD_OUT)
    return {
        "learnt": docstrings(LEARNT), "in domain": held_out, "facts": FACTS.strip(),
        "source code": source_code(HELD_OUT), "other languages": OTHER_LANGUAGES.strip(),
        "scrambled": held_out,
    }  # fmt: skip


def windows(tokens: np.ndarray, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Cuts so many pieces of a text, `[count, length + 1]`, at random; they may overlap."""
    at = rng.integers(0, len(tokens) - length, count)
    return tokens[at[:, None] + np.arange(length + 1)[None]]
