"""Files of `torch.export.save` (`.pt2`), read without running anything that they bring.

`torch.export.load` unpickles and evaluates what a file says. So every part is examined first:
tensors that are pickled are loaded by `weights_only=True`, expressions are arithmetic, operations
are PyTorch's own, and nothing is compiled code or an object of a class. What is trusted is PyTorch:
its reader of archives and its operations.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.export.pt2_archive import PT2ArchiveReader, _package, constants


class _UnsafeError(ValueError):
    """A part of a file that isn't loaded, and why."""


def load_program(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    """Loads a program that runs nothing of its own.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no archive of one program, is damaged, or has parts that could run code.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        _examine(content)
        programs = _package.load_pt2(io.BytesIO(content)).exported_programs
        return programs["model"]
    except _UnsafeError as error:
        raise ValueError(
            f"functional: {os.fspath(path)!r} {error}, which isn't loaded from a file. If you "
            "trust where it is from, give the program: functional(torch.export.load(path))."
        ) from error
    # Of a damaged file PyTorch raises what its parts happen to raise.
    except Exception as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"functional: {os.fspath(path)!r} is damaged or no exported program of this PyTorch "
            f"({torch.__version__}): {cause[-1][:200]} Write it again: "
            "torch.export.save(torch.export.export(model, (x,)), path)."
        ) from error


def _examine(content: bytes) -> None:
    """Refuses an archive with a part that could run code or inflate."""
    _check_stored(content)
    with PT2ArchiveReader(io.BytesIO(content)) as reader:
        names = reader.get_file_names()
        for name in names:
            if not name.startswith(_KNOWN_PARTS):
                raise _UnsafeError(f"has the part {name!r}")
        # Others would be examined, but never run.
        models = [name for name in names if name.startswith(constants.MODELS_DIR)]
        expected = constants.MODELS_FILENAME_FORMAT.format("model")
        if models != [expected]:
            raise ValueError(f"it has the programs {models}, not {expected}.")
        for name in names:
            if name.startswith((constants.WEIGHTS_DIR, constants.CONSTANTS_DIR)):
                _examine_payload(reader, name)
            elif name.startswith(constants.SAMPLE_INPUTS_DIR):
                _examine_pickle(name, reader.read_bytes(name))
        _examine_graph(json.loads(reader.read_string(expected)))


def _check_stored(content: bytes) -> None:
    """Refuses an archive whose parts are larger than it is: they would inflate."""
    # The size of a record is what it takes when it is read.
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    if sum(map(reader.get_record_size, reader.get_all_records())) > len(content):
        raise _UnsafeError("has compressed parts")


_KNOWN_PARTS = (
    constants.MODELS_DIR, constants.WEIGHTS_DIR, constants.CONSTANTS_DIR,
    constants.SAMPLE_INPUTS_DIR, constants.EXTRA_DIR, constants.ARCHIVE_FORMAT_PATH,
    constants.ARCHIVE_VERSION_PATH, "byteorder", ".data/",
)  # fmt: skip


def _examine_payload(reader: Any, name: str) -> None:
    """Examines weights or constants: bytes of tensors, or their list."""
    if name.endswith(".pt"):
        _examine_pickle(name, reader.read_bytes(name))
    if not name.endswith("_config.json"):
        return
    folder = name.rpartition("/")[0]
    for entry in json.loads(reader.read_string(name))["config"].values():
        part = f"{folder}/{entry['path_name']}"
        if entry["path_name"].startswith(_OBJECTS):
            raise _UnsafeError(f"has the object {part!r}")
        if entry.get("use_pickle"):
            _examine_pickle(part, reader.read_bytes(part))
        elif not reader.archive_file.get_record_size(part):
            # PyTorch makes zeros of it.
            sizes = [size.get("as_int", 1) for size in entry["tensor_meta"]["sizes"]]
            if 0 not in sizes:
                raise ValueError(f"{part!r} has no bytes for a tensor of {sizes}.")


_OBJECTS = (constants.CUSTOM_OBJ_FILENAME_PREFIX, constants.OPAQUE_OBJ_FILENAME_PREFIX)


def _examine_pickle(name: str, content: bytes) -> None:
    """Refuses pickled data that holds more than tensors and containers of them."""
    try:
        _check_stored(content)
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise _UnsafeError(f"has pickled data in {name!r} that may run code") from error


# --------------------------------------------------------------------------------------- graphs


def _examine_graph(program: Any) -> None:
    """Refuses a graph with operations or expressions that aren't PyTorch's arithmetic."""
    for key, text in _texts(program, ""):
        if key == "expr_str" and not _is_arithmetic(text):
            raise _UnsafeError(f"has the size {text[:80]!r}")
        if key in ("target", "as_operator") and not _is_operation(text):
            raise _UnsafeError(f"has the operation {text[:80]!r}")
        if key in ("in_spec", "out_spec"):
            _examine_structure(json.loads(text)[1])
        if key == "guards_code" and not _is_arithmetic(text, _MEMBERS):
            raise _UnsafeError(f"has the condition {text[:80]!r}")
    # Their names are evaluated like expressions.
    for name in program["range_constraints"]:
        if not _is_arithmetic(name):
            raise _UnsafeError(f"has the size {name[:80]!r}")


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Lists all texts of a parsed file with the key they are under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _texts(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, key)


_OPERATORS = {
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "getitem", "eq",
    "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "xor", "lshift", "rshift",
}  # fmt: skip


_OPERATION = r"torch\.ops\.(aten|prims|higher_order)(\.\w+){1,2}|torch\._?sym_[a-z]+|math\.[a-z]\w*"


def _is_operation(target: str) -> bool:
    """Returns whether a graph's operation is one of PyTorch's own on arrays or numbers."""
    # By its name: PyTorch imports what a file names, and importing runs code.
    if target.startswith("_operator."):
        return target.removeprefix("_operator.") in _OPERATORS
    return re.fullmatch(_OPERATION, target) is not None


_FUNCTIONS = {
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "Min",
    "FloorToInt", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "TruncToInt", "RoundToInt", "ToFloat",
    "Max", "Identity", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "max", "min",
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Equality", "Unequality",
    "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan",
}  # fmt: skip
"""Names in SymPy's and PyTorch's expressions of sizes, as they are stored."""

_SYMBOL = r"[a-z]{1,3}\d+"
_MEMBERS = frozenset({"size", "stride", "storage_offset", "shape"})
_ARITHMETIC = (
    ast.Expression, ast.Load, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def _is_arithmetic(text: str, members: frozenset[str] = frozenset()) -> bool:
    """Returns whether an expression computes with numbers and sizes alone.

    With `members` it may also read those of an input, `L['x'].size()[0]`.
    """
    # Parsing takes stack by depth; no size that PyTorch writes is as long.
    if len(text) > 2000:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_arithmetic_node(node, members) for node in nodes)


def _is_arithmetic_node(node: ast.AST, members: frozenset[str]) -> bool:
    if isinstance(node, ast.Name):
        known = node.id in _FUNCTIONS or re.fullmatch(_SYMBOL, node.id)
        return bool(known or (members and node.id == "L"))
    if isinstance(node, ast.Constant):
        # SymPy evaluates texts where it expects numbers.
        is_name = re.fullmatch(
            r"[A-Za-z]\w*" if members else rf"{_SYMBOL}|[\d.e+-]+", str(node.value)
        )
        return isinstance(node.value, int | float) or is_name is not None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        return _is_small(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Pow":
        return len(node.args) == 2 and _is_small(node.args[1])
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name | ast.Attribute)
    if isinstance(node, ast.Attribute):
        return node.attr in members
    return isinstance(node, (*_ARITHMETIC, ast.Subscript) if members else _ARITHMETIC)


def _is_small(power: ast.expr) -> bool:
    """Returns whether a power is a number that makes no huge ones."""
    text = ast.unparse(power).removeprefix("Integer(").removesuffix(")")
    return re.fullmatch(r"-?\d", text) is not None


_CONTAINERS = {
    "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict",
    "torch.fx.immutable_collections.immutable_list",
    "torch.fx.immutable_collections.immutable_dict", None,
}  # fmt: skip


def _examine_structure(spec: Any) -> None:
    """Refuses inputs and outputs in containers that a file names classes or modules for."""
    if spec["type"] not in _CONTAINERS or "__enum__" in json.dumps(spec["context"]):
        raise _UnsafeError(f"has inputs or outputs in a {spec['type']}")
    for child in spec["children_spec"]:
        _examine_structure(child)
