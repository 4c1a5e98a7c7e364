"""Shows at a function or class of the reference the example of its module that calls it.

Examples stand in the docstrings of private modules, which have no pages of their own. The blocks
of a docstring run in order: those that define what the shown one reads are shown above it.
"""

import ast
import builtins
import re
import textwrap
from typing import Any

import griffe

_IMPORT = ("import ", "from ")


class ModuleExamples(griffe.Extension):
    """Ends docstrings with the first example of their module that calls what they describe.

    Griffe takes what a module imports for private, so that faces are told what they offer.
    """

    def on_module_members(self, *, node: Any, mod: griffe.Module, **_: Any) -> None:
        """Called for each module: a face offers what it imports as `X as X` and what it defines."""
        if mod.is_init_module and isinstance(node, ast.Module):
            named = [
                name.name
                for each in ast.walk(node)
                if isinstance(each, ast.ImportFrom)
                for name in each.names
                if name.name == name.asname
            ]
            own = [name for name, each in mod.members.items() if not each.is_alias]
            mod.exports = named + [name for name in own if not name.startswith("_")]

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Called for each function."""
        _show(func)

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for each class: one that `register_setting` makes a dataclass has parameters."""
        _show(cls)
        if any(each.callable_path.endswith("register_setting") for each in cls.decorators):
            dataclass = griffe.ExprName("dataclasses.dataclass")
            cls.decorators.append(griffe.Decorator(dataclass, lineno=None, endlineno=None))


def _show(described: griffe.Function | griffe.Class) -> None:
    module, docstring = described.parent, described.docstring
    private = isinstance(module, griffe.Module) and module.name.startswith("_")
    if not private or module.docstring is None or docstring is None:
        return
    if "```python" in docstring.value:
        return
    blocks = re.findall(r"```python\n(.*?)```", module.docstring.value, re.DOTALL)
    for i, block in enumerate(blocks):
        if re.search(rf"\b{described.name}\(", block):
            fenced = f"```python\n{with_definitions(blocks[: i + 1])}```"
            docstring.value += f"\n\nExamples:\n{textwrap.indent(fenced, '    ')}\n"
            return


def with_definitions(blocks: list[str]) -> str:
    """Returns the last of some blocks, below the statements of those before that it depends on."""
    *earlier, shown = blocks
    missing, imports, definitions = undefined(shown), list[str](), list[str]()
    for block in reversed(earlier):
        for statement in reversed(_statements(block)):
            if names := missing & _names(statement, ast.Store, inside=False):
                missing = missing - names | undefined(statement)
                if statement.startswith(_IMPORT):
                    node = ast.parse(statement).body[0]
                    assert isinstance(node, ast.Import | ast.ImportFrom)
                    node.names = [each for each in node.names if _bound(each) in names]
                    imports.append(ast.unparse(node))
                else:
                    definitions.insert(0, statement)
    if shown.startswith(">>>"):
        above = (">>> " + each.replace("\n", "\n... ") for each in imports + definitions)
        return "\n".join([*above, shown])
    # All imports stand above, also those that the last block begins with.
    for statement in _statements(shown):
        if imports + definitions and statement.startswith(_IMPORT):
            imports.append(statement)
            shown = shown.replace(statement, "", 1).lstrip("\n")
    imports.sort(key=lambda line: (line.startswith("from "), line))
    return "\n\n".join(filter(None, ("\n".join(imports), "\n".join(definitions), shown)))


def _statements(code: str) -> list[str]:
    code = _typed(code)
    lines = code.split("\n")
    nodes = ast.parse(code).body
    starts = (
        min([node, *getattr(node, "decorator_list", ())], key=lambda n: n.lineno) for node in nodes
    )
    return [
        "\n".join(lines[start.lineno - 1 : node.end_lineno])
        for start, node in zip(starts, nodes, strict=True)
    ]


def undefined(code: str) -> set[str]:
    """Returns the names that code reads and doesn't define."""
    return _names(code, ast.Load) - _names(code, ast.Store) - set(dir(builtins))


def _names(code: str, context: type[ast.expr_context], inside: bool = True) -> set[str]:
    """Returns the names that code reads or defines, those `inside` functions and classes too."""
    tree = ast.parse(_typed(code))
    if not inside and isinstance(tree.body[0], ast.FunctionDef | ast.ClassDef):
        return {tree.body[0].name}
    nodes = list(ast.walk(tree))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    if context is ast.Load:
        return found
    for node in nodes:
        if isinstance(node, ast.alias):
            found.add(_bound(node))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _typed(code: str) -> str:
    """Returns what is typed in a session, without prompts and results; other code as it is."""
    if not code.startswith(">>>"):
        return code
    prompts = (line for line in code.splitlines() if line.startswith((">>>", "...")))
    return "\n".join(line[4:] for line in prompts)


def _bound(alias: ast.alias) -> str:
    return (alias.asname or alias.name).partition(".")[0]
