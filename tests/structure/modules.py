"""Reads the library's modules and what each imports, without importing any."""

import ast
from collections import deque
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = {"jaxeff": ROOT / "jaxeff", "jaxeff_export": ROOT / "export" / "jaxeff_export"}
"""The import packages of the distribution and where they are."""


class Import(NamedTuple):
    """One imported name: `from module import name`, or `import module` where `name` is None."""

    module: str
    name: str | None
    line: int
    deferred: bool


class Module:
    """A module of the library.

    Attributes:
        name: Its dotted name; a package's is that of its folder.
        path: Its file.
        text: What is in it.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.text = path.read_text()

    @property
    def is_package(self) -> bool:
        """Whether it is the face of a folder."""
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """The package it is in; a package is in itself."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        """The first folder below the import package, such as `jaxeff.noise`."""
        return ".".join(self.name.split(".")[:2])

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> list[Import]:
        """All imports in it, those inside functions and for type checkers included."""
        found = []
        queue: deque[tuple[ast.AST, bool]] = deque([(self.tree, False)])
        while queue:
            node, deferred = queue.popleft()
            inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            # Expressions hold no imports, and are most of a tree: they are left out.
            children = ast.iter_child_nodes(node)
            queue += [(child, inside) for child in children if not isinstance(child, ast.expr)]
            if isinstance(node, ast.Import):
                found += [Import(a.name, None, node.lineno, deferred) for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                found += [Import(source, a.name, node.lineno, deferred) for a in node.names]
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        parts = parts[: len(parts) + 1 - node.level]
        return ".".join([*parts, node.module] if node.module else parts)


def read_modules(folders: dict[str, Path] = FOLDERS) -> dict[str, Module]:
    """Reads every module of the given import packages.

    Args:
        folders: Import package -> its folder.

    Returns:
        Dotted name -> module, sorted.
    """
    found = {}
    for top, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            name = ".".join((top, *parts))
            found[name] = Module(name, path)
    return found


def dependencies(module: Module, modules: dict[str, Module]) -> set[str]:
    """The library's modules that a module imports; a name that is a module counts as that."""
    found = set()
    for item in module.imports:
        inner = f"{item.module}.{item.name}"
        target = inner if inner in modules else item.module
        # A child that imports its parent package reads a private module of it, never its face.
        if target in modules and target != module.name:
            found.add(target)
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Finds the strongly connected components of more than one node (Tarjan's algorithm).

    Args:
        graph: Node -> the nodes it points to.

    Returns:
        The members of each component, sorted.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        # No node of the component reaches one visited before it: the stack above is complete.
        if low[node] == index[node]:
            at = stack.index(node)
            component, stack[at:] = sorted(stack[at:]), []
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def import_lines(modules: Iterable[Module]) -> int:
    """Counts the lines that import something."""
    statements = ast.Import | ast.ImportFrom
    nodes = (n for module in modules for n in ast.walk(module.tree) if isinstance(n, statements))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def whole_line_comments(modules: Iterable[Module]) -> tuple[int, int]:
    """Counts the lines that hold a comment only, and all lines."""
    lines = [line.lstrip() for module in modules for line in module.text.splitlines()]
    return sum(line.startswith("#") for line in lines), len(lines)
