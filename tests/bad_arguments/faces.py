"""What is public to users: the names that `jaxeff`, its rooms and `jaxeff_export` offer.

Left out are `core`, sub-packages and most rooms of `jaxeff_export`, whose faces are for the
library's own packages and for authors of new transforms; what users need of them, higher faces
offer.
"""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import jaxeff_export

import jaxeff
from jaxeff.core import Setting


def public(kind: str) -> dict[str, Any]:
    """Every public function, or every public setting, by the first module that shows it.

    Args:
        kind: "functions" or "settings".
    """
    found: dict[int, tuple[str, Any]] = {}
    for module in _modules():
        for name in offered(module):
            value = getattr(module, name)
            setting = isinstance(value, type) and issubclass(value, Setting)
            wanted = inspect.isfunction(value) if kind == "functions" else setting
            if wanted and id(value) not in found:
                found[id(value)] = (f"{module.__name__}.{name}", value)
    return dict(found.values())


def on_every_face() -> dict[str, Any]:
    """Every function of all faces, those of inner packages and of `core` too."""
    functions: dict[int, tuple[str, Any]] = {}
    for package in (jaxeff, jaxeff_export):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part.startswith("_") for part in found.name.split(".")):
                try:
                    face = importlib.import_module(found.name)
                except ModuleNotFoundError as error:
                    if error.name != "torch":  # what reads PyTorch, where that isn't installed
                        raise
                    continue
                for name in offered(face):
                    value = getattr(face, name)
                    if inspect.isfunction(value):
                        functions.setdefault(id(value), (f"{face.__name__}.{name}", value))
    return dict(functions.values())


def offered(face: Any) -> list[str]:
    """The names that a face imports as themselves, `from _x import A as A`, and defines."""
    tree = ast.parse(inspect.getsource(face))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = {n.name for node in imports for n in node.names if n.name == n.asname}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {n.id for n in node.targets if isinstance(n, ast.Name)}
    return sorted(name for name in names if not name.startswith("_"))


def _modules() -> Iterator[Any]:
    yield from (jaxeff, jaxeff_export, jaxeff_export.boards)
    for module in pkgutil.iter_modules(jaxeff.__path__):
        if module.ispkg and module.name != "core":
            yield importlib.import_module(f"{jaxeff.__name__}.{module.name}")


def call_of(
    function: Any, own: Mapping[str, Any], common: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """What a function is called with, and the parameters that nothing is known for.

    Args:
        function: A public one.
        own: Values of its own, by parameter.
        common: Values for parameters of that name anywhere.

    Returns:
        A value for each parameter that has no default or is known, `*args` as one tuple; and the
        names of parameters without a default that no value is known for.
    """
    values: dict[str, Any] = {}
    unknown = set()
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if name in own:
            values[name] = own[name]
        elif parameter.default is not inspect.Parameter.empty:
            is_none = parameter.default is None
            values[name] = common.get(name) if is_none else parameter.default
        elif name in common:
            values[name] = common[name]
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            values[name] = ()
        else:
            unknown.add(name)
    return values, unknown


def call(function: Any, values: Mapping[str, Any]) -> Any:
    """Calls a function with a value for every parameter by name, `*args` as one tuple."""
    kinds = {name: p.kind for name, p in inspect.signature(function).parameters.items()}
    star = several(function)
    positional: list[Any] = []
    named = dict(values)
    for name, kind in kinds.items():
        if name == star:
            positional += list(named.pop(name, ()))
        elif star is not None and kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            positional.append(named.pop(name))  # what stands before `*args` can't be named
    return function(*positional, **named)


def may_be_none(function: Any, name: str) -> bool:
    """Whether a parameter says that it takes None."""
    parameter = inspect.signature(function).parameters[name]
    return parameter.default is None or "None" in str(parameter.annotation)


def several(function: Any) -> str | None:
    """The name of `*args`, if a function has them."""
    parameters = inspect.signature(function).parameters.items()
    found = (name for name, p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL)
    return next(found, None)
