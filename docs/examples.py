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


class ModuleExamples(griffe.Extension):
    """Ends docstrings with the first example of their module that calls what they describe."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Called for each function."""
        _show(func)

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for each class. One that `register_setting` makes a dataclass has its parameters."""
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
    """Returns the last of some blocks, below those before it that define what it reads."""
    *earlier, shown = blocks
    missing = undefined(shown)
    for block in reversed(earlier):
        if missing & _names(block, ast.Store):
            shown = f"{block}\n{shown}"
            missing = undefined(shown)
    return shown


def undefined(code: str) -> set[str]:
    """Returns the names that code reads and doesn't define."""
    return _names(code, ast.Load) - _names(code, ast.Store) - set(dir(builtins))


def _names(code: str, context: type[ast.expr_context]) -> set[str]:
    if code.startswith(">>>"):
        prompts = (line for line in code.splitlines() if line.startswith((">>>", "...")))
        code = "\n".join(line[4:] for line in prompts)
    nodes = list(ast.walk(ast.parse(code)))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    if context is ast.Load:
        return found
    for node in nodes:
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found
