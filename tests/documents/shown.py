"""Holds what documents show of results to the results.

Three things are compared: what a block prints with the block fenced as ``output`` below it; the
numbers that open a comment behind a printed or bare expression; and the shape (``[2, 10]``) or
dtype that opens one behind an assignment. Numbers agree to the digits shown.
"""

import ast
import contextlib
import io
import math
import re
import textwrap
import tokenize
from typing import Any

import jax
import numpy as np
from sybil import Example
from sybil.evaluators.python import pad
from sybil.parsers.markdown import CodeBlockParser

NUMBER = r"-?(?:\d[\d,]*\d|\d)?\.?\d+(?:e[+-]?\d+)?(?!\w)"
OPENING = re.compile(rf"""(?:[\s()\[\]{{}},]|and\b|["']\w+["']:|{NUMBER})+""")
"""Numbers at the start of a comment, with what may stand between them."""

SHAPE = re.compile(r"(?:(\w*(?:int|float)\d+)(?=$|,| \[))?,? ?(?:\[([^\]]+)\])?")
"""A dtype, a shape, or both; sizes that aren't numbers are names."""


class ShownError(AssertionError):
    """A document shows something else than its code gives."""


def numbers(text: str) -> list[str]:
    """The numbers in a text as they are written, without separators of thousands."""
    return [re.sub(r",(?=\d{3})", "", found) for found in re.findall(rf"(?<!\w){NUMBER}", text)]


def opening(comment: str) -> list[str]:
    """The numbers that a comment starts with."""
    start = OPENING.match(comment)
    return numbers(start[0]) if start else []


def _agrees(shown: str, value: float) -> bool:
    digits, _, exponent = shown.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return math.isclose(float(shown), value, rel_tol=1e-9, abs_tol=0.5001 * unit * ("." in digits))


def compare_numbers(comment: str, value: Any) -> None:
    """Compares the numbers a comment starts with with a printed text, or with a value's."""
    shown = opening(comment)
    if isinstance(value, str):
        held = [float(text) for text in numbers(value)]
    else:
        leaves = jax.tree.leaves(value)
        if [str(n) for leaf in leaves[:1] for n in np.shape(leaf)] == shown:
            return  # the shape of an array
        held = [float(n) for leaf in leaves for n in np.ravel(leaf)[: len(shown)]]
    if len(held) < len(shown) or not all(map(_agrees, shown, held)):
        raise ShownError(f"shown: {comment}\nit is: {value}")


def compare_shape(comment: str, value: Any) -> None:
    """Compares a dtype and a shape that a comment starts with with an array's."""
    dtype, sizes = SHAPE.match(comment).groups()
    array = jax.tree.leaves(value)[0]
    shape = [size.split()[0] for size in sizes.split(",")] if sizes else []
    same = len(shape) == array.ndim and all(
        not shown.isdecimal() or int(shown) == size
        for shown, size in zip(shape, array.shape, strict=True)
    )
    if (sizes and not same) or dtype not in (None, str(array.dtype)):
        raise ShownError(f"shown: {comment}\nit is: {array.dtype} {list(array.shape)}")


def _printed(comment: str, *args: Any, **kwargs: Any) -> None:
    print(*args, **kwargs)
    with io.StringIO() as text:
        print(*args, **{**kwargs, "file": text})
        compare_numbers(comment, text.getvalue())


CHECKS = {"_printed": _printed, "_number": compare_numbers, "_shape": compare_shape}
"""What the code of documents calls once `_Checked` has changed it."""


class _Checked(ast.NodeTransformer):
    """Compares values where the comment behind a statement starts with one."""

    def __init__(self, source: str) -> None:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokens if token.type == tokenize.COMMENT
        }  # fmt: skip

    def _call(self, check: str, comment: str, *args: ast.expr, **kwargs: Any) -> ast.Call:
        return ast.Call(ast.Name(check, ast.Load()), [ast.Constant(comment), *args], [], **kwargs)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        comment = self.comments.get(node.end_lineno, "")
        if not opening(comment):
            return self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Name(id="print")):
                node.value.func = ast.Name("_printed", ast.Load())
                node.value.args.insert(0, ast.Constant(comment))
            case _:
                node.value = self._call("_number", comment, node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        comment = self.comments.get(node.end_lineno, "")
        names = [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
        if len(names) != 1 or not any(SHAPE.match(comment).groups()):
            return self.generic_visit(node)
        return [node, ast.Expr(self._call("_shape", comment, ast.Name(names[0], ast.Load())))]


def run(example: Example) -> None:
    """Runs a block, compares what its comments show and keeps what it prints."""
    source = pad(example.parsed, example.line + example.parsed.line_offset)
    tree = ast.copy_location(_Checked(source).visit(ast.parse(source)), ast.parse(source))
    code = compile(ast.fix_missing_locations(tree), example.path, "exec", dont_inherit=True)
    example.namespace.update(CHECKS)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, example.namespace)
    finally:
        for name in (*CHECKS, "__builtins__"):
            example.namespace.pop(name, None)
    example.document.printed = printed.getvalue()


def compare_output(example: Example) -> None:
    """Compares a block of output with what the block of code above it printed."""
    printed = [line.rstrip() for line in example.document.printed.splitlines()]
    if textwrap.dedent(example.parsed).splitlines() != printed:
        raise ShownError("shown:\n" + example.parsed + "it prints:\n" + "\n".join(printed))


OUTPUT = CodeBlockParser("output", compare_output)
PYTHON = CodeBlockParser("python", run)
