"""What a library's C text is written from: its kernels and buffers, its arrays as C has them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jaxeff_export.artifact import TensorSpec, dtype_of
from jaxeff_export.clib._objects import CLibraryError
from jaxeff_export.clib.codegen._rendering import TYPES, Parameters

if TYPE_CHECKING:
    import numpy as np

    from jaxeff_export.clib._kernels import CKernel
    from jaxeff_export.clib._program import KernelProgram, Memory

STATE = "state"  # field of the inputs

_REMARKS = {
    "bool": "0 or 1",
    "float16": "bits of IEEE half precision",
    "bfloat16": "bits of bfloat16",
}
_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t
while xor xor_eq
"""
_MACROS = """
BUFSIZ CLOCKS_PER_SEC EOF FILENAME_MAX HUGE_VAL I INFINITY NAN NULL RAND_MAX complex errno far
i386 imaginary interrupt linux near stderr stdin stdout unix int8_t int16_t int32_t int64_t uint8_t
uint16_t uint32_t uint64_t size_t uintptr_t
"""
_KEYWORDS = frozenset(_WORDS.split()) | frozenset(_MACROS.split())
"""Of C and C++; what their headers and compilers define, which no field can be called."""

_OWN_FILES = frozenset(("main", "recorded", "serial_main", "startup"))
_HEADERS = """
arduino arm_acle assert complex ctype errno fenv float inttypes iso646 limits locale math pthread
setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string
strings tgmath threads time uchar unistd wchar wctype
"""
_FUNCTIONS = """
abort abs accept acos acosh alarm asin asinh atan atan2 atanh atexit atof atoi atol bind bsearch
calloc cbrt ceil clock close connect copysign cos cosh ctime difftime div erase erf erfc exit exp
exp2 expm1 fabs fclose fdim feof fflush fgets floor fma fmax fmin fmod fopen fork fprintf fputs
fread free frexp fscanf fseek ftell fwrite gamma getc getchar getenv gets hypot ilogb index isalpha
isdigit isfinite isinf isnan isnormal isspace jn j0 j1 kill labs ldexp lgamma link listen llabs log
log10 log1p log2 logb longjmp lrint lround malloc memchr memcmp memcpy memmove memset mktime modf
nan nearbyint nextafter nice open pause perror pipe poll pow printf putc putchar puts qsort raise
rand random read realloc recv remainder remove rename rewind rindex rint round scalbn scanf select
send signbit sin sinh sleep snprintf socket sprintf sqrt srand sscanf stat std strcat strchr strcmp
strcpy strlen strncpy strstr strtod strtof strtok strtol sync system tan tanh tgamma time truncate
trunc ungetc unlink usleep vfork vprintf wait write y0 y1 yn
"""
MOST_LETTERS = 64
"""Of a library's name: with what follows it, a file's name has at most 255 everywhere."""


def require_name(name: str) -> None:
    """Refuses a library's name that C, a file or a compiler would take for something else.

    Raises:
        CLibraryError: It says why, and gives another name.
    """
    if len(name) > MOST_LETTERS:
        raise CLibraryError(
            f"the name {name[:20]}... has {len(name)} letters, and names of files and in C begin "
            f"with it: at most {MOST_LETTERS}; give a shorter one, name='net'"
        )
    better = identifier(name)
    reason = ""
    if better != name:
        reason = "is no name in C"
    elif name.lower() in _OWN_FILES:  # some file systems know no capitals
        reason = f"is the name of a file of the library's own, {name.lower()}.c"
    elif name.lower() in _HEADERS.split():
        reason = f"is a header of C's, and its {name}.h would be included in place of it"
    elif name in _FUNCTIONS.split():
        reason = "is a name of C's library, which a namespace of C++ can't have"
    if reason:
        better = better if better != name else f"{name}_net"
        raise CLibraryError(f"{name!r} {reason}; give one such as name={better!r}")


@dataclasses.dataclass(frozen=True)
class Field:
    """An array that a call takes or fills.

    Attributes:
        name: in C.
        kind: the C type of an element.
        count: number of elements of that type.
        spec: what it is in the function.
        kept: whether it is state, in a struct of its own.
    """

    name: str
    kind: str
    count: int
    spec: TensorSpec
    kept: bool = False

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * dtype_of(self.spec.dtype).itemsize

    def within(self, struct: str) -> str:
        """Returns the expression in C of the array, given that of its struct."""
        return f"inputs->{STATE}->{self.name}" if self.kept else f"{struct}->{self.name}"

    @property
    def remark(self) -> str:
        """Description of the array, for a comment."""
        shape = "x".join(map(str, self.spec.shape)) or "a single number"
        more = _REMARKS.get(self.spec.dtype, "")
        if self.spec.grid is not None:
            step, zero = self.spec.grid
            more = f"code q is (q - {zero}) * {step:.9g}"
        return f"{self.spec.name}: {self.spec.dtype}, {shape}" + (f", {more}" if more else "")


def grid_of(field: Field, name: str) -> list[str]:
    """Defines the numbers that its codes are read by, if it holds codes, in macros of that name."""
    if field.spec.grid is None:
        return []
    step, zero = field.spec.grid
    # Nine digits identify a float32.
    return [f"#define {name}_STEP {float(step):.9e}f", f"#define {name}_ZERO {zero}"]


def fields_of(
    specs: Sequence[TensorSpec], reserved: frozenset[str] = frozenset()
) -> tuple[Field, ...]:
    """Makes the fields of a struct, each with a name of its own and none that is `reserved`.

    Raises:
        CLibraryError: if an array's size varies, or C has no type for its elements.
    """
    fields: list[Field] = []
    taken: set[str] = set(reserved)
    for spec in specs:
        if spec.varies:
            raise CLibraryError(
                f"{spec.name} has the shape {spec.shape}, which varies, and a C library plans its "
                "memory in advance; deploy for a fixed batch, without any_batch"
            )
        name = identifier(spec.name, taken)
        taken.add(name)
        count = math.prod(int(n) for n in spec.shape)
        fields.append(Field(name, _c_type(spec), count, spec))
    return tuple(fields)


def kept_apart(
    inputs: Sequence[Field], outputs: Sequence[Field], pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Marks arguments and results that are state: one array, of the argument's name."""
    places, replaced = {old for old, _ in pairs}, {new: old for old, new in pairs}
    marked = tuple(dataclasses.replace(field, kept=i in places) for i, field in enumerate(inputs))
    return marked, tuple(
        marked[replaced[i]] if i in replaced else field for i, field in enumerate(outputs)
    )


def identifier(text: str, taken: set[str] | frozenset[str] = frozenset()) -> str:
    """Makes a name in C that is none of those taken."""
    # ASCII alone: other letters are allowed in C11, but not by every compiler.
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    if name[0].isdigit() or name in _KEYWORDS:
        name = f"_{name}" if name[0].isdigit() else f"{name}_"
        # Names that begin with an underscore are the compiler's at file scope (C11, 7.1.3).
        name = f"n{name}" if name.startswith("_") else name
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _c_type(spec: TensorSpec) -> str:
    if spec.dtype in TYPES:
        return TYPES[spec.dtype]
    size = dtype_of(spec.dtype).itemsize
    if spec.dtype.startswith("float") and size == 1:
        # Floats of 8 bits are no types of C: their bits are.
        return f"uint{8 * size}_t"
    raise CLibraryError(f"{spec.name} is of dtype {spec.dtype}, which C has no type for")


CODES = {"OK": 0, "WORKSPACE_TOO_SMALL": 1, "MISALIGNED": 2, "NULL_POINTER": 3}
"""Codes that each call may return; others have numbers of their own, the same in all libraries."""


@dataclasses.dataclass(frozen=True)
class Library:
    """All that a library's C is written from.

    Attributes:
        name: prefix of the names in C.
        made_for: the processor, in words.
        inputs: what a call takes.
        outputs: what it fills.
        program: what it does.
        kernels: kernels that it calls.
        memory: plan of the workspace.
        parameters: what is bound, and the constants.
        embedded: whether these are part of the archive.
        threads: the most threads that may share a loop.
        rounds_inputs: whether arguments are rounded to codes, and looked through for NaN before.
        initial: what each array of state begins with.
        kernel_source: the kernels in C, where they are not compiled already.
    """

    name: str
    made_for: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    program: KernelProgram
    kernels: Mapping[str, CKernel]
    memory: Memory
    parameters: Parameters
    embedded: bool = True
    threads: int = 1
    rounds_inputs: bool = False
    initial: Sequence[np.ndarray] = ()
    kernel_source: tuple[str, ...] | None = None

    @property
    def passed(self) -> tuple[Field, ...]:
        """The arguments that a call passes: those that are no state."""
        return tuple(field for field in self.inputs if not field.kept)

    @property
    def returned(self) -> tuple[Field, ...]:
        """The results that a call returns: those that are no state."""
        return tuple(field for field in self.outputs if not field.kept)

    @property
    def state(self) -> tuple[Field, ...]:
        """The arrays that calls update."""
        return tuple(field for field in self.inputs if field.kept)

    @property
    def upper(self) -> str:
        """The name as macros have it."""
        return self.name.upper()

    @property
    def stack(self) -> int:
        """Bytes of arrays that the kernel with most of them keeps on the stack."""
        return max((k.stack for k in self.kernels.values()), default=0)

    @property
    def refuses_nan(self) -> bool:
        """Whether arguments are rounded to codes, and some of them may be NaN."""
        exact = ("bool", "int", "uint")  # these have no NaN
        return self.rounds_inputs and any(
            f.count and not f.spec.dtype.startswith(exact) for f in self.passed
        )

    @property
    def codes(self) -> Mapping[str, int]:
        """Codes that a call may return."""
        # Numbers are the same in all libraries, also where some of them can't occur.
        threads = {"NO_THREADS": 4} if self.threads > 1 else {}
        numbers = {"NOT_A_NUMBER": 5} if self.refuses_nan else {}
        return CODES | threads | numbers
