"""The work of each kernel of a scheduled module, and which parameters its calls read.

Work is the products that a kernel adds up, and the bytes it is given.

It is counted in the kernel's loops, so padding and repeated computation are included. Products are
counted as instructions make them: a product and a sum of floats, a product of bytes in a dot
product, a bit product where bits are counted. Only kernels that accumulate have any.
"""

import dataclasses

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.script import tirx as T

from jaxeff_export.compiler.passes import BOUND, sources_of
from jaxeff_export.compiler.tir import TILE, bytes_of, called_kernel, contains, statements_of

_PRODUCTS = {
    "llvm.x86.avx512.vpdpbusd.512": 64,
    "llvm.x86.avx512.vpdpbusd.256": 32,
    "llvm.x86.avx512.pmaddw.d.512": 32,
    "llvm.x86.avx2.pmadd.wd": 16,
    "llvm.aarch64.neon.sdot.v4i32.v16i8": 16,
    "llvm.aarch64.neon.smull.v8i16": 8,
}
"""Products in a call of an instruction."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A kernel's work in one call.

    Attributes:
        name: name of the kernel.
        read: bytes of the arrays it is given.
        written: bytes of its results.
        products: the products it adds up; 0 if it accumulates nothing.
        bound: bytes of the network's parameters among those it reads.
        calls: number of calls in a call of the network.
    """

    name: str
    read: int
    written: int
    products: int
    bound: int = 0
    calls: int = 1

    @property
    def facts(self) -> dict[str, int]:
        """Returns all attributes but the name."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "name"}


def work_of(mod: tvm.IRModule) -> list[Work]:
    """Counts the work of every kernel of a scheduled module whose sizes are known beforehand."""
    counter, called = _Counter(), _calls(mod)
    counted = []
    for name, kernel in mod.functions_items():
        if not isinstance(kernel, tirx.PrimFunc):
            continue
        try:
            written = _written(kernel)
            sizes = {p: bytes_of(p) for p in kernel.params}
            result = sum(size for p, size in sizes.items() if p in written)
            work = counter.products(kernel.body)
        except (TypeError, ValueError, AttributeError):  # a size that only the call tells
            continue
        calls = called.get(name, [])
        # Calls of one kernel with other weights read as much; the largest stands for them.
        bound = max((sum(sizes[kernel.params[i]] for i in taken) for taken in calls), default=0)
        read = sum(sizes.values()) - result
        counted.append(Work(name.name_hint, read, result, work, bound, max(1, len(calls))))
    return counted


def reads_of(mod: tvm.IRModule) -> list[tuple[str, tuple[int, ...]]]:
    """Lists the calls of kernels in order, each with the numbers of the bound arrays it reads."""
    with tvm.transform.PassContext(opt_level=3):
        main = relax.transform.RewriteDataflowReshape()(mod)["main"]  # a view is no call
    bound = int((main.attrs or {}).get(BOUND, 0))
    numbers = {v: i for i, v in enumerate(main.params[:bound])}
    sources = sources_of(main, bound)
    calls = []
    for binding in (b for block in main.body.blocks for b in block.bindings):
        value = binding.value
        if (kernel := called_kernel(value, in_place=True)) is not None:
            # An array that data take part in has no sources.
            read = (sorted(numbers[v] for v in sources.get(a) or ()) for a in value.args[1].fields)
            calls.append((str(kernel.name_hint), tuple(n for each in read for n in each)))
    return calls


def tiles_of(mod: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    """Reads which extents of its result registers hold at once, for each kernel of a product."""
    tiles: dict[str, tuple[int, ...]] = {}
    for name, kernel in mod.functions_items():
        if isinstance(kernel, tirx.PrimFunc):
            blocks: list[s_tir.SBlock] = []
            tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, blocks.append))
            for notes in (kernel.attrs or {}, *(block.annotations for block in blocks)):
                if TILE in notes:
                    tiles[str(name.name_hint)] = tuple(int(extent) for extent in notes[TILE])
    return tiles


def _calls(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, list[list[int]]]:
    """Finds which arguments are bound parameters, for each kernel and each call of it."""
    main = mod["main"]
    bound = set(main.params[: int((main.attrs or {}).get(BOUND, 0))])
    calls: dict[tvm.ir.GlobalVar, list[list[int]]] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if (kernel := called_kernel(value)) is not None:
                taken = [i for i, v in enumerate(value.args[1].fields) if v in bound]
                calls.setdefault(kernel, []).append(taken)
    return calls


def _written(kernel: tirx.PrimFunc) -> set[tirx.Var]:
    stored: set[tirx.Var] = set()
    tvm_ffi.structural_walk(kernel.body, (tirx.BufferStore, lambda s: stored.add(s.buffer)))
    return stored


class _Counter:
    def __init__(self) -> None:
        self._calls = {T.llvm_lookup_intrinsic_id(name): n for name, n in _PRODUCTS.items()}

    def products(self, statement: tirx.Stmt) -> int:
        """Counts the products of a statement: both sides of branches, no starting values."""
        if isinstance(statement, tirx.For):
            each = self.products(statement.body)
            # Loops of copies may have a length that is read from memory.
            return int(statement.extent) * each if each else 0
        if isinstance(statement, tirx.SeqStmt):
            return sum(map(self.products, statements_of(statement)))
        if isinstance(statement, s_tir.SBlockRealize):
            return self.products(statement.block.body)
        if isinstance(statement, tirx.IfThenElse):
            branches = [statement.then_case, statement.else_case]
            return sum(self.products(branch) for branch in branches if branch is not None)
        if isinstance(statement, tirx.BufferStore):
            return self._added(statement)
        body = getattr(statement, "body", None)
        return 0 if body is None else self.products(body)

    def _added(self, store: tirx.BufferStore) -> int:
        counted: list[int] = []
        tvm_ffi.structural_walk(store.value, (tvm.ir.Call, lambda c: counted.append(self._of(c))))
        # An instruction's products replace the arithmetic around it, which only widens or adds up.
        if any(counted):
            return sum(counted)
        return _terms(store.value, store.buffer) * _lanes(store.value)

    def _of(self, call: tvm.ir.Call) -> int:
        name = getattr(call.op, "name", "")
        # A counted bit of two planes' conjunction is a product of two bits.
        if name.endswith("popcount"):
            return tvm.DataType(call.ty.dtype).bits * _lanes(call)
        if "llvm_pure_intrin" in name:
            return self._calls.get(int(call.args[0]), 0)
        return 0


def _terms(value: tirx.Expr, target: tirx.Var) -> int:
    """Counts the products that a store adds to the content of its buffer."""
    terms = 0
    # Sums are left-deep after `unpair_products`, with the buffer's own content innermost.
    while isinstance(value, tirx.Add | tirx.Sub):
        terms += contains(value.b, tirx.Mul)
        value = value.a
    held = isinstance(value, tvm.ir.TensorLoad) and value.source.same_as(target)
    return terms if held else 0


def _lanes(value: tirx.Expr) -> int:
    return int(tvm.DataType(value.ty.dtype).lanes)
