"""Kernels as C99 source: no vectors, no intrinsics, no assembler, nothing of one compiler.

A kernel is read in the form that LLVM would get it in, and written statement by statement. What is
a vector there is a number for each of its lanes here, so compilers make vectors of it as they see
fit. All conversions are written out: `-Wconversion` has nothing to say, and an `int` of 16 bits
computes the same.

Sharp edges:
    Signed numbers shift right arithmetically and wrap around when they are converted to fewer bits:
    C leaves both to a compiler, and all do so.
    Exponentials and roundings add a constant and take it away again: reordered, as `-ffast-math`
    allows, they would be wrong by tenths. The file switches that off where a compiler can be told
    (`floats.c.in`), and is refused by it elsewhere.
    A compiler that fuses products and sums all the same rounds floats otherwise. Codes of integer
    networks stay the same but where a float meets a tie.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from jaxeff_export.clib._objects import HALF, TYPES, CLibraryError, constant
from jaxeff_export.compiler.passes import IN_PLACE

_NARROW = ("int8", "uint8", "int16", "uint16")
_BINARY = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "And": "&&",
    "Or": "||",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
}
_LOGICAL = ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not")
_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_MATH = """
exp exp2 log log2 log10 log1p expm1 sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
floor ceil trunc round fabs pow fmod atan2 hypot copysign ldexp erf nextafter fma
"""
"""Operations of TVM that are functions of C's library, with an f at the end for float."""

HELPERS = {
    "f32_bits": """static uint32_t f32_bits(float x)
{
    union { float number; uint32_t bits; } both;
    both.number = x;
    return both.bits;
}""",
    "f32_of": """static float f32_of(uint32_t x)
{
    union { float number; uint32_t bits; } both;
    both.bits = x;
    return both.number;
}""",
    "f64_bits": """static uint64_t f64_bits(double x)
{
    union { double number; uint64_t bits; } both;
    both.number = x;
    return both.bits;
}""",
    "f64_of": """static double f64_of(uint64_t x)
{
    union { double number; uint64_t bits; } both;
    both.bits = x;
    return both.number;
}""",
    # Adding 2^23 leaves no room for fractions: the processor rounds to even as it adds.
    "f32_nearbyint": """static float f32_nearbyint(float x)
{
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD == 0
    const float size = x < 0.0f ? -x : x;
    if (!(size < 8388608.0f))
        return x;
    return x < 0.0f ? (x - 8388608.0f) + 8388608.0f : (x + 8388608.0f) - 8388608.0f;
#else
    return nearbyintf(x);
#endif
}""",
    "f64_nearbyint": """static double f64_nearbyint(double x)
{
    return nearbyint(x);
}""",
    "popcount": """static uint64_t popcount(uint64_t x)
{
    uint64_t count = 0;
    for (; x != 0; x &= x - 1)
        ++count;
    return count;
}""",
    "leading_zeros": """static int32_t leading_zeros(uint64_t x, int32_t bits)
{
    for (; x != 0; x >>= 1)
        --bits;
    return bits;
}""",
    # Rounded to even; numbers below the smallest normal one are multiples of 2^-24.
    "f16_bits": """static uint16_t f16_bits(float x)
{
    const uint32_t bits = f32_bits(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((size >> 13) & 0x1ffu));
    if (size >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u)
        return (uint16_t)(sign | (f32_bits(f32_of(size) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13));
}""",
    "f16_number": """static float f16_number(uint16_t x)
{
    const uint32_t sign = ((uint32_t)x & 0x8000u) << 16, size = (uint32_t)x & 0x7fffu;
    if (size >= 0x7c00u)
        return f32_of(sign | 0x7f800000u | ((size & 0x3ffu) << 13));
    if (size < 0x400u)
        return f32_of(sign | f32_bits((float)size * 0x1p-24f));
    return f32_of(sign | ((size << 13) + 0x38000000u));
}""",
}
"""Functions that kernels call, each after those that it calls."""
_NEEDS = {"f16_bits": ("f32_bits", "f32_of"), "f16_number": ("f32_bits", "f32_of")}
_HELPED = {"popcount": "popcount", "clz": "leading_zeros"}


def write_kernels(mod: tvm.IRModule) -> list[str]:
    """Writes the functions of a module, with what they call before them.

    Their arguments are pointers to numbers, lowered as for LLVM.

    Raises:
        CLibraryError: if a kernel has an operation or dtype that C99 has not.
    """
    helpers: set[str] = set()
    functions = []
    for function in sorted(
        (f for _, f in mod.functions_items()), key=lambda f: str(f.attrs["global_symbol"])
    ):
        writer = _KernelWriter(helpers)
        functions += [*writer.written(function), ""]
    for name in list(helpers):
        helpers.update(_NEEDS.get(name, ()))
    lines = [line for name in HELPERS if name in helpers for line in (HELPERS[name], "")]
    return [*lines, *functions]


class _KernelWriter:
    """Writes one function."""

    def __init__(self, helpers: set[str]) -> None:
        self._helpers = helpers
        self._lines: list[str] = []
        self._depth = 1
        self._names: dict[Any, str | list[str]] = {}
        self._taken: dict[str, int] = {}
        self._kinds: dict[Any, str] = {}
        self._views: dict[Any, list[str]] = {}
        self._symbol = ""

    def written(self, function: tirx.PrimFunc) -> list[str]:
        """Returns the lines of the function."""
        self._symbol = str(function.attrs["global_symbol"])
        stored, read = set(), set()
        walks = (
            (tirx.BufferStore, lambda n: stored.add(n.buffer)),
            (tvm.ir.TensorLoad, lambda n: read.add(n.source)),
        )
        for walk in walks:
            tvm_ffi.structural_walk(function.body, walk, order="post")
        # Which argument an array is: those of other shapes are the same pointers.
        roots: dict[Any, Any] = {v: v for v in function.params}
        aliases: list[Any] = []
        tvm_ffi.structural_walk(function.body, (tirx.DeclBuffer, aliases.append), order="pre")
        for alias in aliases:
            pointer = _pointer_of(alias.data)
            roots[alias.buffer] = roots.get(pointer, pointer)
            self._views.setdefault(roots[alias.buffer], []).append(
                _vector_of(str(alias.buffer.dtype))[0]
            )
        changed = {roots.get(buffer, buffer) for buffer in stored}
        self._used = {roots.get(buffer, buffer) for buffer in stored | read}
        self._roots, self._changed = roots, changed
        # A result may lie where an argument does that its kernel reads for the last time.
        alone = "" if (function.attrs or {}).get(IN_PLACE) else "restrict "
        parameters, first = [], []
        for variable in function.params:
            const = "" if variable in changed else "const "
            element = getattr(variable.ty, "element_type", None)
            if element is None:  # the turns of a loop that threads share
                name = self._new(variable.name)
                self._names[variable] = name
                parameters.append(f"{self._type(_dtype(variable))} {name}")
                continue
            kind = self._type(str(element.dtype))
            name, argument = self._new(variable.name), self._new(f"{variable.name}_at")
            self._names[variable], self._kinds[variable] = name, str(element.dtype)
            parameters.append(f"{const}void *{argument}")
            # Places of the workspace hold floats now and codes later.
            pointer = f"{const}any_{kind} *{alone}{name} = {argument};"
            first.append(pointer if variable in self._used else f"(void){argument};")
        for line in first:
            self._line(line)
        self._statement(function.body)
        head = f"static void {self._symbol}({', '.join(parameters) or 'void'})"
        return [head, "{", *self._lines, "}"]

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextlib.contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(f"{head}{{" if not head else f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self._line("}")

    def _new(self, name: str) -> str:
        name = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "v"
        name = f"v{name}" if name[0].isdigit() or name in _RESERVED else name
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        return self._new(f"{name}_{count}") if count else name

    def _refused(self, what: str) -> CLibraryError:
        return CLibraryError(
            f"{self._symbol} has {what}, which C99 source has no form for; export it without "
            "source=True"
        )

    def _type(self, dtype: str) -> str:
        if dtype not in TYPES:
            raise self._refused(f"numbers of {dtype}")
        return TYPES[dtype]

    def _statement(self, node: Any) -> None:
        match type(node).__name__:
            case "SeqStmt":
                for one in node.seq:
                    self._statement(one)
            case "AttrStmt":
                self._statement(node.body)
            case "AllocBuffer":
                self._allocate(node)
            case "DeclBuffer":
                self._declare(node)
            case "Bind":
                self._bind(node.var, node.value)
            case "For":
                self._loop(node)
            case "While":
                self._while(node)
            case "IfThenElse":
                # clang takes doubled brackets around a comparison for a mistake.
                with self._block(f"if {_bracketed(self._number(node.condition, 0))}"):
                    self._statement(node.then_case)
                if node.else_case is not None:
                    with self._block("else"):
                        self._statement(node.else_case)
            case "BufferStore":
                self._store(node)
            case "Evaluate":
                if not isinstance(node.value, tirx.IntImm):
                    self._line(f"(void){self._number(node.value, 0)};")
            case other:
                raise self._refused(f"a statement {other}")

    def _declare(self, node: tirx.DeclBuffer) -> None:
        """Declares another view of an array, which is a pointer of its own for another dtype."""
        array, (dtype, _) = _pointer_of(node.data), _vector_of(str(node.buffer.dtype))
        root = self._roots.get(array, array)
        name = self._name(array)
        self._kinds.setdefault(node.buffer, dtype)
        if dtype != self._kinds[array] and root in self._used:
            const = "" if root in self._changed else "const "
            view, kind = self._new(node.buffer.name), self._type(dtype)
            self._line(f"{const}any_{kind} *{view} = ({const}any_{kind} *)({const}void *){name};")
            self._line(f"(void){view};")
            name = view
        self._names[node.buffer] = name

    def _allocate(self, node: tirx.AllocBuffer) -> None:
        buffer = node.buffer
        dtype, lanes = _vector_of(str(buffer.dtype))
        size = math.prod(int(n) for n in buffer.shape) * lanes
        name = self._new(buffer.name)
        self._names[buffer], self._kinds[buffer] = name, dtype
        if self._roots.get(buffer, buffer) not in self._used:
            return
        volatile = "volatile " if (node.annotations or {}).get("tirx.volatile") else ""
        # Aligned for all that it is read as.
        widest = max([dtype, *self._views.get(buffer, ())], key=_bits)
        if _bits(widest) > _bits(dtype):
            wide = self._new(f"{buffer.name}_wide")
            count = -(-max(1, size) * _bits(dtype) // _bits(widest))
            self._line(f"{self._type(widest)} {wide}[{count}];")
            kind = self._type(dtype)
            self._line(f"any_{kind} *{name} = (any_{kind} *)(void *){wide};")
        else:
            self._line(f"{volatile}{self._type(dtype)} {name}[{max(1, size)}];")

    def _bind(self, variable: tirx.Var, value: Any) -> None:
        dtype, lanes = _vector_of(_dtype(value))
        kind = self._type(dtype)
        texts = [self._number(value, lane) for lane in range(lanes)]
        names = [self._new(variable.name) for _ in texts]
        for name, text in zip(names, texts, strict=True):
            self._line(f"const {kind} {name} = {text};")
            self._line(f"(void){name};")
        self._names[variable] = names

    def _loop(self, node: tirx.For) -> None:
        kind = self._type(_dtype(node.loop_var))
        i = self._new(node.loop_var.name)
        self._names[node.loop_var] = [i]
        begin = self._number(node.min, 0)
        end = self._number(Analyzer().simplify(node.min + node.extent), 0)
        with self._block(f"for ({kind} {i} = {begin}; {i} < {end}; ++{i})"):
            self._statement(node.body)

    def _while(self, node: tirx.While) -> None:
        # What the condition computes in steps of its own belongs into every turn.
        with self._block("for (;;)"):
            self._line(f"if (!{_bracketed(self._number(node.condition, 0))})")
            self._line("    break;")
            self._statement(node.body)

    def _store(self, node: tirx.BufferStore) -> None:
        dtype, inner = _vector_of(str(node.buffer.dtype))
        _, lanes = _vector_of(_dtype(node.value))
        array = self._name(node.buffer)
        if lanes == 1:
            value = self._number(node.value, 0)
            self._line(f"{array}[{self._place(node.indices[-1], 0, inner)}] = {value};")
            return
        places = [self._place(node.indices[-1], lane, inner) for lane in range(lanes)]
        if _reads_elsewhere(node, self._roots):
            # All lanes are read before one is written: some may be those that are written over.
            values = []
            for lane in range(lanes):
                text, name = self._number(node.value, lane), self._new("lane")
                self._line(f"const {self._type(dtype)} {name} = {text};")
                values.append(name)
            for place, name in zip(places, values, strict=True):
                self._line(f"{array}[{place}] = {name};")
            return
        for lane, place in enumerate(places):
            self._line(f"{array}[{place}] = {self._number(node.value, lane)};")

    def _name(self, buffer: tirx.Buffer) -> str:
        name = self._names[buffer]
        assert isinstance(name, str)
        return name

    def _place(self, index: Any, lane: int, inner: int) -> str:
        """Writes the index of a lane, in an array whose elements are themselves vectors."""
        _, lanes = _vector_of(_dtype(index))
        if inner > 1 and lanes == 1:
            return f"({self._number(index, 0)}) * {inner} + {lane}"
        return self._number(index, lane)

    def _number(self, node: Any, lane: int) -> str:
        """Writes the value of a lane as an expression of one number."""
        dtype, _ = _vector_of(_dtype(node))
        kind = type(node).__name__
        if kind in ("IntImm", "FloatImm"):
            return constant(node.value, dtype)
        if kind in ("Var",):
            return self._variable(node, lane)
        if kind == "Broadcast":
            return self._number(node.value, 0)
        if kind == "Ramp":
            if lane == 0:
                return self._number(node.base, 0)
            step = Analyzer().simplify(node.base + node.stride * lane)
            return self._number(step, 0)
        if kind == "Shuffle":
            at = int(node.indices[lane])
            for vector in node.vectors:
                _, lanes = _vector_of(_dtype(vector))
                if at < lanes:
                    return self._number(vector, at)
                at -= lanes
        if kind == "TensorLoad":
            _, inner = _vector_of(str(node.source.dtype))
            return f"{self._name(node.source)}[{self._place(node.indices[-1], lane, inner)}]"
        if kind == "Let":
            self._bind(node.var, node.value)
            return self._number(node.body, lane)
        if kind == "Cast":
            return self._cast(
                self._number(node.value, lane), _vector_of(_dtype(node.value))[0], dtype
            )
        if kind == "Select":
            parts = (node.condition, node.true_value, node.false_value)
            condition, yes, no = (self._number(part, lane) for part in parts)
            return f"({condition} ? {yes} : {no})"
        if kind == "Not":
            return f"(uint8_t)!{self._number(node.a, lane)}"
        if kind in ("Min", "Max"):
            return self._extreme(node, lane, "<" if kind == "Min" else ">")
        if kind in ("LShift", "RShift"):
            return self._shift(node.a, node.b, lane, dtype, kind == "LShift")
        if kind == "BitwiseNot":
            return self._narrowed(f"~{self._number(node.a, lane)}", dtype)
        if kind in _BINARY:
            return self._binary(node.a, node.b, lane, dtype, kind)
        if kind == "Call":
            return self._call(node, lane, dtype)
        raise self._refused(f"an operation {kind}")

    def _variable(self, node: tirx.Var, lane: int) -> str:
        names = self._names[node]
        if isinstance(names, str):
            return names
        return names[lane if len(names) > 1 else 0]

    def _narrowed(self, text: str, dtype: str) -> str:
        """Converts what C has computed as int back."""
        return f"({TYPES[dtype]})({text})" if dtype in _NARROW or dtype == "bool" else f"({text})"

    def _binary(self, a: Any, b: Any, lane: int, dtype: str, kind: str) -> str:
        operand, _ = _vector_of(_dtype(a))
        if operand in HALF:
            raise self._refused(f"arithmetic of {operand}")
        left, right = self._number(a, lane), self._number(b, lane)
        if kind == "Mod" and dtype.startswith("float"):
            return f"{self._function('fmod', dtype)}({left}, {right})"
        # Products of 16 bits don't fit an int of 32, and those of 8 none of 16.
        wide = f"1u * {left}" if kind == "Mul" and dtype in ("uint16", "uint8") else left
        text = f"{wide} {_BINARY[kind]} {right}"
        if kind in _LOGICAL:
            return f"({text})"
        return self._narrowed(text, dtype)

    def _extreme(self, node: Any, lane: int, sign: str) -> str:
        """Writes a minimum or maximum, of whose operands each is computed once."""
        dtype, _ = _vector_of(_dtype(node))
        a, b = (self._once(part, lane, dtype) for part in (node.a, node.b))
        return f"({a} {sign} {b} ? {a} : {b})"

    def _once(self, node: Any, lane: int, dtype: str) -> str:
        text = self._number(node, lane)
        if type(node).__name__ in ("IntImm", "FloatImm", "Var"):
            return text
        name = self._new("v")
        self._line(f"const {self._type(dtype)} {name} = {text};")
        return name

    def _shift(self, a: Any, b: Any, lane: int, dtype: str, left: bool) -> str:
        value, by = self._number(a, lane), self._number(b, lane)
        if not left:
            return self._narrowed(f"{value} >> {by}", dtype)
        # To the left only unsigned numbers may be shifted.
        unsigned = TYPES[f"u{dtype.removeprefix('u')}"]
        wide = unsigned if dtype.removeprefix("u") not in ("int8", "int16") else "uint32_t"
        return f"({TYPES[dtype]})(({wide}){value} << {by})"

    def _cast(self, text: str, source: str, dtype: str) -> str:
        if source == dtype:
            return text
        if source in HALF:
            text = self._widened(text, source)
            source = "float32"
            return self._cast(text, source, dtype)
        if dtype == "float16":
            self._helpers.add("f16_bits")
            return f"f16_bits((float){text})"
        if dtype == "bfloat16":
            raise self._refused("a conversion to bfloat16")
        if dtype == "bool":
            return f"(uint8_t)({text} != 0)"
        return f"({self._type(dtype)}){_enclosed(text)}"

    def _widened(self, text: str, source: str) -> str:
        if source == "float16":
            self._helpers.add("f16_number")
            return f"f16_number({text})"
        self._helpers.add("f32_of")
        return f"f32_of((uint32_t){text} << 16)"

    def _function(self, name: str, dtype: str) -> str:
        return f"{name}f" if dtype == "float32" else name

    def _nearbyint(self, dtype: str) -> str:
        # No function of C's library, which avr-libc has not and others compute slowly.
        helper = f"f{dtype.removeprefix('float')}_nearbyint"
        self._helpers.add(helper)
        return helper

    def _call(self, node: Any, lane: int, dtype: str) -> str:
        name = str(getattr(node.op, "name", node.op)).rpartition(".")[2]
        arguments = list(node.args)
        if name == "if_then_else":
            return self._chosen(arguments, lane, dtype)
        if name == "reinterpret":
            return self._reinterpreted(arguments[0], lane, dtype)
        if name == "likely":
            return self._number(arguments[0], lane)
        if name in _BITWISE:
            texts = [self._number(a, lane) for a in arguments]
            return self._narrowed(f" {_BITWISE[name]} ".join(texts), dtype)
        if name == "bitwise_not":
            return self._narrowed(f"~{self._number(arguments[0], lane)}", dtype)
        if name in ("shift_left", "shift_right"):
            return self._shift(arguments[0], arguments[1], lane, dtype, name == "shift_left")
        if name in ("call_extern", "call_pure_extern"):
            # A function of C's library by its own name.
            symbol = str(getattr(arguments[0], "value", arguments[0]))
            texts = [self._number(a, lane) for a in arguments[1:]]
            if symbol.removesuffix("f") == "nearbyint":
                symbol = self._nearbyint(dtype)
            return f"{symbol}({', '.join(texts)})"
        operand, _ = _vector_of(_dtype(arguments[0])) if arguments else (dtype, 1)
        texts = [self._number(a, lane) for a in arguments]
        if operand in HALF:
            raise self._refused(f"arithmetic of {operand}")
        if name in ("abs", "fabs"):
            if dtype.startswith("float"):
                return f"{self._function('fabs', dtype)}({texts[0]})"
            once = self._once(arguments[0], lane, dtype)
            return self._narrowed(f"{once} < 0 ? -{once} : {once}", dtype)
        if name == "nearbyint":
            return f"{self._nearbyint(dtype)}({texts[0]})"
        if name == "isnan":
            once = self._once(arguments[0], lane, operand)
            return f"({once} != {once})"
        if name == "isinf":
            return f"(isinf({texts[0]}) != 0)"
        if name in _HELPED:
            self._helpers.add(_HELPED[name])
            unsigned = TYPES[f"u{operand.removeprefix('u')}"]
            more = f", {operand.lstrip('uint')}" if name == "clz" else ""
            text = f"{_HELPED[name]}((uint64_t)({unsigned}){texts[0]}{more})"
            return f"({self._type(dtype)}){text}"
        if name in _MATH.split():
            return f"{self._function(name, dtype)}({', '.join(texts)})"
        raise self._refused(f"an operation {name}")

    def _chosen(self, arguments: Sequence[Any], lane: int, dtype: str) -> str:
        """Writes a choice, of which only the chosen part is computed."""
        condition = self._number(arguments[0], lane)
        parts = []
        for argument in arguments[1:]:
            held, self._lines = self._lines, []
            self._depth += 1
            text = self._number(argument, lane)
            self._depth -= 1
            parts.append((self._lines, text))
            self._lines = held
        if not any(lines for lines, _ in parts):
            return f"({condition} ? {parts[0][1]} : {parts[1][1]})"
        name = self._new("v")
        self._line(f"{self._type(dtype)} {name};")
        for head, (lines, text) in zip((f"if {_bracketed(condition)}", "else"), parts, strict=True):
            with self._block(head):
                self._lines += lines
                self._line(f"{name} = {text};")
        return name

    def _reinterpreted(self, node: Any, lane: int, dtype: str) -> str:
        source, _ = _vector_of(_dtype(node))
        size, wide = _bits(dtype), _bits(source)
        if source == dtype:
            return self._number(node, lane)
        if size == wide:
            return self._same_bits(self._number(node, lane), source, dtype)
        if wide > size:  # a part of a number: the lowest comes first
            per = wide // size
            unsigned = self._same_bits(self._number(node, lane // per), source, f"uint{wide}")
            part = f"(uint{size}_t)({unsigned} >> {size * (lane % per)})"
            return self._same_bits(part, f"uint{size}", dtype)
        per = size // wide
        parts = [
            f"(uint{size}_t)"
            + _enclosed(self._same_bits(self._number(node, lane * per + k), source, f"uint{wide}"))
            + (f" << {wide * k}" if k else "")
            for k in range(per)
        ]
        joined = " | ".join(f"({part})" for part in parts)
        return self._same_bits(self._narrowed(joined, f"uint{size}"), f"uint{size}", dtype)

    def _same_bits(self, text: str, source: str, dtype: str) -> str:
        """Converts between numbers of one size, whose bits stay."""
        if source == dtype:
            return text
        size = _bits(dtype)
        if source in ("float32", "float64"):
            self._helpers.add(f"f{size}_bits")
            text = f"f{size}_bits({text})"
        if dtype in ("float32", "float64"):
            self._helpers.add(f"f{size}_of")
            return f"f{size}_of((uint{size}_t){_enclosed(text)})"
        return f"({self._type(dtype)}){_enclosed(text)}"


_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int
long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while NAN INFINITY
"""
_RESERVED = (
    frozenset(_WORDS.split())
    | frozenset(HELPERS)
    # A variable of such a name would hide the function that a kernel calls.
    | {f"{name}{end}" for name in _MATH.split() for end in ("", "f")}
    | {"isnan", "isinf", "memcpy", "memset", "nearbyint", "nearbyintf"}
)


def _reads_elsewhere(node: tirx.BufferStore, roots: Mapping[Any, Any]) -> bool:
    """Tells whether what is written is read too, at another place."""
    root = roots.get(node.buffer, node.buffer)
    loads: list[Any] = []
    tvm_ffi.structural_walk(node.value, (tvm.ir.TensorLoad, loads.append))
    return any(
        roots.get(load.source, load.source).same_as(root)
        and not (
            load.source.same_as(node.buffer)
            and tvm_ffi.structural_equal(load.indices, node.indices)
        )
        for load in loads
    )


def _enclosed(text: str) -> str:
    return text if text.isidentifier() else _bracketed(text)


def _bracketed(text: str) -> str:
    """Puts a text in brackets, unless its first one closes at the very end."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text if at and at == len(text) - 1 else f"({text})"
    return f"({text})"


def _pointer_of(data: Any) -> Any:
    """Finds the variable, or the array, that a declaration's address comes from."""
    while not isinstance(data, tirx.Var) and getattr(data, "args", None):
        data = data.args[0]
    return data


def _dtype(node: Any) -> str:
    kind = node.ty
    return str(getattr(kind, "dtype", kind))


def _vector_of(dtype: str) -> tuple[str, int]:
    """Splits the dtype of a vector into that of its numbers and their count."""
    name, _, lanes = dtype.rpartition("x")
    if name and lanes.isdigit():
        return name, int(lanes)
    return dtype, 1


def _bits(dtype: str) -> int:
    return 8 if dtype == "bool" else int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))
