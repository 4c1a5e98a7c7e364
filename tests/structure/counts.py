"""What is counted, each as a function that lists the places."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

from .modules import Module, circles, dependencies

Modules = dict[str, Module]
VAGUE = {"found", "made", "own", "whole", "given"}
"""Words that say how something came about, not what it is."""
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
DESCRIPTIONS = {
    "jaxeff.core._jax_internals", "jaxeff.program.ir._primitives", "jaxeff.program.ir._signature",
}  # fmt: skip
"""Modules that describe the primitives of JAX."""
LARGEST = 18
"""Modules that a package holds at most: as many as one reads through in search of one."""


def hidden_modules(modules: Modules) -> list[str]:
    """Modules that a public name of their package hides."""
    places = []
    for module in modules.values():
        if module.is_package:
            bound = {item.name for item in module.imports if item.module != module.name}
            places += [f"{module.name}.{n}" for n in bound if f"{module.name}.{n}" in modules]
    return sorted(places)


def public_modules(modules: Modules) -> list[str]:
    """Modules beside a package's face whose names aren't private."""
    last = {name: name.rpartition(".")[2] for name, m in modules.items() if not m.is_package}
    return [name for name, word in last.items() if not word.startswith("_")]


def inner_imports(modules: Modules) -> list[str]:
    """Imports of a module inside another package, other than of a parent's by its child."""
    places = []
    for module in modules.values():
        for target in dependencies(module, modules):
            other = modules[target]
            own = other.is_package or f"{module.package}.".startswith(f"{other.package}.")
            if not own:
                places.append(f"{module.name} -> {target}")
    return sorted(places)


def module_circles(modules: Modules) -> list[str]:
    """Circles of modules, deferred imports and those for type checkers included."""
    graph = {
        name: {t for t in dependencies(module, modules) if not modules[t].is_package}
        for name, module in modules.items()
    }
    return [" ".join(circle) for circle in circles(graph)]


def package_circles(modules: Modules) -> list[str]:
    """Circles of packages; a parent and its own child may import each other's modules."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        packages = {modules[target].package for target in dependencies(module, modules)}
        graph.setdefault(module.package, set()).update(
            p for p in packages if not _related(p, module.package)
        )
    return [" ".join(circle) for circle in circles(graph)]


def _related(a: str, b: str) -> bool:
    return a == b or f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def crowded_packages(modules: Modules) -> list[str]:
    """Packages with more modules than `LARGEST`."""
    sizes = Counter(module.package for module in modules.values() if not module.is_package)
    return [f"{package}: {count}" for package, count in sorted(sizes.items()) if count > LARGEST]


def long_functions(modules: Modules) -> list[str]:
    """Functions of more than 60 statements, as ruff counts them."""
    return _longer_than(60, modules)


def longish_functions(modules: Modules) -> list[str]:
    """Functions of more than 40 statements."""
    return _longer_than(40, modules)


def _longer_than(most: int, modules: Modules) -> list[str]:
    # Folders instead of files keep the command short; their modules are those given.
    tops = [str(m.path.parent) for name, m in modules.items() if "." not in name]
    limit = f"lint.pylint.max-statements={most}"
    command = ["ruff", "check", "--isolated", "--no-cache", "--select", "PLR0915"]
    options = ["--config", limit, "--output-format", "json"]
    run = subprocess.run(
        [sys.executable, "-m", *command, *options, *tops], capture_output=True, text=True
    )
    return [
        f"{Path(found['filename']).name}:{found['location']['row']}: {found['message']}"
        for found in json.loads(run.stdout)
    ]


def functions_of_many_lines(modules: Modules) -> list[str]:
    """Functions of more than 60 lines, docstrings included."""
    return [
        f"{module.name}:{node.lineno}: {node.name}, {_lines_of(node)}"
        for module, node in _functions(modules)
        if _lines_of(node) > 60
    ]


def functions_of_many_parameters(modules: Modules) -> list[str]:
    """Functions of more than seven parameters, `self` aside, without a reason above them.

    A reason is a comment above the first decorator that begins with the number of parameters, as
    in `# 8 parameters: ...`.
    """
    places = []
    for module, node in _functions(modules):
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        names = [name for name in names if name not in ("self", "cls")]
        if len(names) > 7 and not _has_reason(module, node, f"# {len(names)} parameters: "):
            places.append(f"{module.name}:{node.lineno}: {node.name}, {len(names)}")
    return places


def _functions(modules: Modules) -> Iterator[tuple[Module, ast.FunctionDef]]:
    for module in modules.values():
        nodes = ast.walk(module.tree)
        yield from ((module, node) for node in nodes if isinstance(node, ast.FunctionDef))


def _lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _has_reason(module: Module, node: ast.FunctionDef, beginning: str) -> bool:
    lines = module.text.splitlines()
    line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 2
    while line >= 0 and lines[line].lstrip().startswith("#"):
        if lines[line].lstrip().startswith(beginning):
            return True
        line -= 1
    return False


def long_module_docstrings(modules: Modules) -> list[str]:
    """Modules whose docstring has more than 25 lines."""
    return [
        f"{module.name}: {_lines_of(module.tree.body[0])}"
        for module in modules.values()
        if ast.get_docstring(module.tree) and _lines_of(module.tree.body[0]) > 25
    ]


def readers_of_equations(modules: Modules) -> list[str]:
    """Modules that read a jaxpr's list of equations, where `equations` and `walk` are for that."""
    return [
        module.name
        for module in modules.values()
        if any(isinstance(n, ast.Attribute) and n.attr == "eqns" for n in ast.walk(module.tree))
    ]


def scattered_primitives(modules: Modules) -> list[str]:
    """Modules beyond six that name one primitive of JAX, other than those that describe them all.

    What an analysis asks of an equation, its signature or a set of primitives says.
    """
    places: dict[str, set[str]] = {}
    for module in modules.values():
        for node in ast.walk(module.tree) if module.name not in DESCRIPTIONS else ():
            name = getattr(node, "attr", "") or getattr(node, "id", "")
            if re.fullmatch(r"[a-z]\w+_p", name):
                places.setdefault(name, set()).add(module.name)
    pairs = ((name, module) for name, names in places.items() for module in sorted(names)[6:])
    return [f"{name}: {module}" for name, module in pairs]


def late_typing_imports(modules: Modules) -> list[str]:
    """Imports for type checkers below a module's first function or class."""
    places = []
    for module in modules.values():
        code = (i for i, n in enumerate(module.tree.body) if isinstance(n, _DEFINITIONS))
        for node in module.tree.body[next(code, len(module.tree.body)) :]:
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                places.append(f"{module.name}:{node.lineno}")
    return places


def common_private_names(modules: Modules) -> list[str]:
    """Private functions and classes whose name more than five modules have: a search finds none."""
    places: dict[str, set[str]] = {}
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, _DEFINITIONS) and re.match("_[a-z]", node.name):
                places.setdefault(node.name, set()).add(module.name)
    return [f"{name}: {len(names)}" for name, names in places.items() if len(names) > 5]


def absent_references(modules: Modules) -> list[str]:
    """References into a text that isn't in the repository, such as T1234."""
    return _places(modules, re.compile(r"\bT[0-9]{3,4}\b"))


def vague_arguments(modules: Modules) -> list[str]:
    """Docs of an argument that begin with no noun: Of, That, With, Where, Its, As, By, Those."""
    first = "Of|That|With|Where|Likewise|Its|As|By|Those|Which|Whose"
    return _places(modules, re.compile(rf"^ +(?!\w+Error)\*{{0,2}}\w+: ({first})\b"))


def shared_class_names(modules: Modules) -> list[str]:
    """Classes that have the name of another class of the library."""
    found: dict[str, list[str]] = {}
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{module.name}:{node.lineno}: {node.name}")
    return [place for places in found.values() for place in places[1:]]


def vague_names(modules: Modules) -> list[str]:
    """Variables, parameters, attributes and functions that are called one of `VAGUE`."""
    places = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    pass
                case ast.arg(arg=name) | ast.FunctionDef(name=name):
                    pass
                case _:
                    continue
            if name.strip("_") in VAGUE:
                places.append(f"{module.name}:{node.lineno}: {name}")
    return places


def _places(modules: Modules, pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{module.path.name}:{number}: {line.strip()}"
        for module in modules.values()
        for number, line in enumerate(module.text.splitlines(), 1)
        if pattern.search(line)
    ]


def unexplained_deferred_imports(modules: Modules) -> list[str]:
    """Imports inside functions, of the library's own modules, with no comment on or above them."""
    places = []
    for module in modules.values():
        lines = module.text.splitlines()
        for item in module.imports:
            if item.deferred and item.module.partition(".")[0] in ("jaxeff", "jaxeff_export"):
                # The comment stands on the line, or above the block of imports it is in.
                first = item.line - 1
                while first and lines[first - 1].strip().startswith(("from ", "import ")):
                    first -= 1
                if "#" not in lines[first - 1] + lines[item.line - 1]:
                    places.append(f"{module.name}:{item.line}")
    return sorted(set(places))


def repeated_lines(modules: Modules, length: int = 6) -> list[str]:
    """Pairs of places that share six or more lines of code, spelt alike."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for module in modules.values():
        code = _code(module)
        for start in range(len(code) - length + 1):
            window = tuple(text for _, text in code[start : start + length])
            places.setdefault(window, []).append((module.name, start))
    # A run of n shared lines is n - 5 windows at one distance of each other: one pair of places.
    pairs = {
        (a[0], b[0], b[1] - a[1]) for found in places.values() for a, b in combinations(found, 2)
    }
    return sorted(f"{a} = {b} (at {shift:+d} lines)" for a, b, shift in pairs)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return getattr(node.targets[0], "id", "") == "__all__"
    return isinstance(node, ast.Import | ast.ImportFrom)


def _code(module: Module) -> list[tuple[int, str]]:
    """The lines of a module but docstrings, comments, imports, blanks and closing brackets."""
    left_out: set[int] = set()
    for node in ast.walk(module.tree):
        if _is_text(node) or _is_import(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(module.text.splitlines(), 1)
    kept = [(number, line.strip()) for number, line in lines if number not in left_out]
    return [(n, text) for n, text in kept if re.search(r"\w", text) and not text.startswith("#")]


COUNTS: dict[str, Callable[[Modules], list[str]]] = {
    "modules": sorted,
    "modules hidden by a public name": hidden_modules,
    "modules that aren't private": public_modules,
    "imports of a module inside another package": inner_imports,
    "circles of modules": module_circles,
    "circles of packages": package_circles,
    "packages with too many modules": crowded_packages,
    "functions of more than 60 statements": long_functions,
    "functions of more than 40 statements": longish_functions,
    "functions of more than 60 lines": functions_of_many_lines,
    "functions of more than 7 parameters without a reason": functions_of_many_parameters,
    "module docstrings of more than 25 lines": long_module_docstrings,
    "modules that read a list of equations": readers_of_equations,
    "modules beyond six that name one primitive": scattered_primitives,
    "imports for type checkers in the middle of a module": late_typing_imports,
    "private names of more than five modules": common_private_names,
    "references into an absent text": absent_references,
    "docs of an argument without a noun": vague_arguments,
    "classes that share a name": shared_class_names,
    "names that don't say what is held": vague_names,
    "deferred imports without a reason": unexplained_deferred_imports,
    "pairs of places that share six lines": repeated_lines,
}
"""What is counted, in words, and the function that lists it."""
