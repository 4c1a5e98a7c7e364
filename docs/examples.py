"""Shows at a function or class of the reference the example of its module that calls it.

Examples stand in the docstrings of private modules, which have no pages of their own.
"""

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
        """Called for each class."""
        _show(cls)


def _show(described: griffe.Function | griffe.Class) -> None:
    module, docstring = described.parent, described.docstring
    private = isinstance(module, griffe.Module) and module.name.startswith("_")
    if not private or module.docstring is None or docstring is None:
        return
    if "```python" in docstring.value:
        return
    for block in re.findall(r"```python\n.*?```", module.docstring.value, re.DOTALL):
        if re.search(rf"\b{described.name}\(", block):
            docstring.value += f"\n\nExamples:\n{textwrap.indent(block, '    ')}\n"
            return
