"""Sources that are wrong, huge, deep or endless on purpose, written by hand."""

import re


def _module(body: str, arguments: str = "%x: tensor<4xf32>", result: str = "tensor<4xf32>") -> str:
    return f"func.func public @main({arguments}) -> {result} {{\n{body}\n}}\n"


def _nested_loops(depth: int) -> str:
    head = '%r{0} = "stablehlo.if"(%p) ({{\n'
    tail = (
        "stablehlo.return %{0} : tensor<4xf32>\n}}, {{\nstablehlo.return %x : tensor<4xf32>\n}})"
        " : (tensor<i1>) -> tensor<4xf32>\n"
    )
    names = [f"r{i}" for i in range(depth)]
    opening = "".join(head.format(i) for i in range(depth))
    closing = "".join(tail.format(name) for name in reversed([*names[1:], "x"]))
    body = opening + closing + "return %r0 : tensor<4xf32>"
    return _module(body, "%x: tensor<4xf32>, %p: tensor<i1>")


def _counted_loops(depth: int) -> str:
    head = (
        "%l{0}:2 = stablehlo.while(%i{0} = %zero, %x{0} = %{1}) : tensor<i32>, tensor<4xf32>\n"
        "cond {{\n%p{0} = stablehlo.compare LT, %i{0}, %n : (tensor<i32>, tensor<i32>) -> "
        "tensor<i1>\nstablehlo.return %p{0} : tensor<i1>\n}} do {{\n"
        "%j{0} = stablehlo.add %i{0}, %one : tensor<i32>\n"
    )
    tail = "stablehlo.return %j{0}, %{1} : tensor<i32>, tensor<4xf32>\n}}\n"
    opening = "".join(head.format(i, f"x{i - 1}" if i else "x") for i in range(depth))
    inner = [f"l{i + 1}#1" for i in range(depth - 1)] + [f"x{depth - 1}"]
    closing = "".join(tail.format(i, inner[i]) for i in reversed(range(depth)))
    numbers = {"zero": 0, "one": 1, "n": 1000}
    constants = "".join(
        f"%{name} = stablehlo.constant dense<{n}> : tensor<i32>\n" for name, n in numbers.items()
    )
    return _module(f"{constants}{opening}{closing}return %l0#1 : tensor<4xf32>")


def _calls(edges: dict[str, str]) -> str:
    functions = []
    for i, (name, callee) in enumerate(edges.items()):
        functions.append(
            f"func.func {'public' if i == 0 else 'private'} @{name}(%x: tensor<4xf32>) -> "
            f"tensor<4xf32> {{\n%0 = func.call @{callee}(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
            f"%1 = func.call @{callee}(%0) : (tensor<4xf32>) -> tensor<4xf32>\n"
            "return %1 : tensor<4xf32>\n}\n"
        )
    return "".join(functions)


_HUGE = "tensor<99999999999xf32>"
_ADD = "%0 = stablehlo.add %x, %x : "
_CHAIN = "\n".join(f"%{i + 1} = stablehlo.add %{i}, %{i} : tensor<4xf32>" for i in range(5000))

HOSTILE_TEXTS: dict[str, str] = {
    "empty": "",
    "one NUL": "\0",
    "NUL inside": _module("return %x : tensor<4xf32>").replace("@main", "@ma\0in"),
    "lone surrogate": "module @\ud800 {}",
    "huge tensor": _module(f"{_ADD}{_HUGE}\nreturn %0 : {_HUGE}", f"%x: {_HUGE}", _HUGE),
    "huge splat": _module(
        f"%0 = stablehlo.constant dense<1.0> : {_HUGE}\nreturn %0 : {_HUGE}", result=_HUGE
    ),
    "huge splat, elsewhere": _module(
        f"%0 = stablehlo.constant dense<1.0> : {_HUGE}\n%1 = stablehlo.slice %0 [0:4] : ({_HUGE}) "
        "-> tensor<4xf32>\nreturn %1 : tensor<4xf32>"
    ),
    "huge bfloat16 splat": _module(
        "%0 = stablehlo.constant dense<1.0> : tensor<99999999999xbf16>\n"
        "return %0 : tensor<99999999999xbf16>",
        result="tensor<99999999999xbf16>",
    ),
    "huge iota": _module(
        f"%0 = stablehlo.iota dim = 0 : {_HUGE}\nreturn %0 : {_HUGE}", result=_HUGE
    ),
    "size beyond 64 bits": _module(
        f"{_ADD}tensor<4294967296x4294967296x4xf32>\n"
        "return %0 : tensor<4294967296x4294967296x4xf32>",
        "%x: tensor<4294967296x4294967296x4xf32>",
        "tensor<4294967296x4294967296x4xf32>",
    ),
    "a thousand dimensions": _module(
        f"{_ADD}tensor<{'1x' * 1000}f32>\nreturn %0 : tensor<{'1x' * 1000}f32>",
        f"%x: tensor<{'1x' * 1000}f32>",
        f"tensor<{'1x' * 1000}f32>",
    ),
    "unsupported of huge result": _module(
        "%0 = stablehlo.custom_call @unknown(%x) : (tensor<4xf32>) -> "
        + _HUGE
        + f"\nreturn %0 : {_HUGE}",
        result=_HUGE,
    ),
    "deep attribute": "module attributes {a = " + "[" * 200_000 + "]" * 200_000 + "} {}",
    "deep open attribute": "module attributes {a = " + "[" * 200_000,
    "deep dictionary": "module attributes {a = " + "{a = " * 100_000 + "1" + "}" * 100_000 + "} {}",
    "deep tuple type": _module(
        "return %x : tensor<4xf32>", "%x: " + "tuple<" * 100_000 + "i1" + ">" * 100_000
    ),
    "deep location": _module("return %x : tensor<4xf32>")
    + "#a = loc("
    + 'callsite("a" at ' * 100_000
    + '"b"'
    + ")" * 100_000
    + ")",
    "deep dense": _module(
        "%0 = stablehlo.constant dense<"
        + "[" * 100_000
        + "1"
        + "]" * 100_000
        + "> : tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    ),
    "deep module": "module {\n" * 50_000 + "}\n" * 50_000,
    "deep branches": _nested_loops(40),
    "deep loops": _counted_loops(30),
    "very deep branches": _nested_loops(300),
    "absurdly deep branches": _nested_loops(20_000),
    "deep affine": "module attributes {a = affine_map<(d0) -> ("
    + "(" * 100_000
    + "d0"
    + ")" * 100_000
    + ")>} {}",
    "deep negation": "module attributes {s.a = affine_map<(d0) -> (" + "- " * 100_000 + "d0)>} {}",
    "doubling location": '#loc0 = loc("a")\n'
    + "".join(f"#loc{i + 1} = loc(callsite(#loc{i} at #loc{i}))\n" for i in range(60))
    + _module(
        '%0 = "what.is"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc(#loc60)\n'
        "return %0 : tensor<4xf32>"
    ),
    "doubling type": "!t0 = tuple<i1, i1>\n"
    + "".join(f"!t{i + 1} = tuple<!t{i}, !t{i}>\n" for i in range(60))
    + _module("return %x : tensor<4xf32>", "%x: !t60", "!t60"),
    "huge dimension number": _module(
        "%0 = stablehlo.convolution(%x, %x) dim_numbers = [b, 4000000000, f]x[0, i, o]->[b, 0, f], "
        "window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        "(tensor<1x4x1xf32>, tensor<1x1x1xf32>) -> tensor<1x4x1xf32>\n"
        "return %0 : tensor<1x4x1xf32>"
    ),
    "long chain": _module(
        _CHAIN.replace("%0,", "%x,", 1).replace("%0 ", "%x ", 1) + "\nreturn %5000 : tensor<4xf32>"
    ),
    "calls itself": _calls({"main": "main"}),
    "calls in a ring": _calls({"main": "a", "a": "b", "b": "a"}),
    "doubling calls": _calls({"main": "f0", **{f"f{i}": f"f{i + 1}" for i in range(60)}})
    + "func.func private @f60(%x: tensor<4xf32>) -> tensor<4xf32> {\nreturn %x : tensor<4xf32>\n}",
    "missing function": _calls({"main": "nowhere"}),
    "call of a declaration": _calls({"main": "declared"})
    + "func.func private @declared(tensor<4xf32>) -> tensor<4xf32>",
    "call with other types": _calls({"main": "f"})
    + "func.func private @f(%x: tensor<5xf32>) -> tensor<4xf32>",
    "duplicate symbols": _module("return %x : tensor<4xf32>") * 2,
    "several public functions": _module("return %x : tensor<4xf32>").replace("main", "one")
    + _module("return %x : tensor<4xf32>").replace("main", "two"),
    "no public function": _module("return %x : tensor<4xf32>").replace("public", "private"),
    "public declaration": "func.func public @main(tensor<4xf32>) -> tensor<4xf32>",
    "several blocks": _module("cf.br ^b\n^b:\nreturn %x : tensor<4xf32>"),
    "unregistered dialect": _module(
        '%0 = "what.is"(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>'
    ),
    "unregistered dialect's type": _module(
        "return %x : !what.ever", "%x: !what.ever", "!what.ever"
    ),
    "unregistered top level": '"what.is"() : () -> ()',
    "another dialect": _module("%0 = arith.addf %x, %x : tensor<4xf32>\nreturn %0 : tensor<4xf32>"),
    "no returns": _module(
        '"stablehlo.custom_call"(%x) {call_target_name = "x"} : (tensor<4xf32>) -> ()'
    ),
    "memref argument": _module("return %x : memref<4xf32>", "%x: memref<4xf32>", "memref<4xf32>"),
    "token argument": _module(
        "return %x : !stablehlo.token", "%x: !stablehlo.token", "!stablehlo.token"
    ),
    "unranked argument": _module("return %x : tensor<*xf32>", "%x: tensor<*xf32>", "tensor<*xf32>"),
    "dynamic argument": _module("return %x : tensor<?xf32>", "%x: tensor<?xf32>", "tensor<?xf32>"),
    "unknown operation": _module(
        "%0 = stablehlo.frobnicate %x : tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    ),
    "conditional of other arity": _module(
        '%0 = "stablehlo.if"(%p) ({\nstablehlo.return %x, %x : tensor<4xf32>, tensor<4xf32>\n}, {\n'
        "stablehlo.return %x : tensor<4xf32>\n}) : (tensor<i1>) -> tensor<4xf32>\n"
        "return %0 : tensor<4xf32>",
        "%x: tensor<4xf32>, %p: tensor<i1>",
    ),
    "case without branches": _module(
        '%0 = "stablehlo.case"(%i) : (tensor<i32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>',
        "%x: tensor<4xf32>, %i: tensor<i32>",
    ),
    "loop that never ends": _module(
        "%0 = stablehlo.while(%a = %x) : tensor<4xf32>\ncond {\n%t = stablehlo.constant dense<true>"
        " : tensor<i1>\nstablehlo.return %t : tensor<i1>\n} do {\n"
        "stablehlo.return %a : tensor<4xf32>\n}\nreturn %0 : tensor<4xf32>"
    ),
    "resource constant": _module(
        "%0 = stablehlo.constant dense_resource<nothing> : tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    ),
    "string constant": _module(
        '%0 = "stablehlo.constant"() {value = dense<["a", "b"]> : tensor<2x!what.is>} : () -> '
        "tensor<2xf32>\nreturn %x : tensor<4xf32>"
    ),
    "sparse constant": _module(
        "%0 = stablehlo.constant sparse<[[0]], [1.0]> : tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    ),
    "quantized": _module(
        "%0 = stablehlo.uniform_quantize %x : (tensor<4xf32>) -> "
        "tensor<4x!quant.uniform<i8:f32, 0.5>>\n"
        "return %0 : tensor<4x!quant.uniform<i8:f32, 0.5>>",
        result="tensor<4x!quant.uniform<i8:f32, 0.5>>",
    ),
    "artifact in text": "ML\ufffdR\rStableHLO_v1.0.0",
    "binary": bytes(range(256)).decode("latin-1"),
}


def hostile_artifacts(artifact: bytes) -> dict[str, bytes]:
    """An artifact cut, emptied, relabelled as a newer version, and grown."""
    version = re.search(rb"StableHLO_v\d+\.\d+\.\d+", artifact)
    assert version is not None
    newer = version[0].replace(b"_v1", b"_v9")
    return {
        "nothing": b"",
        "only the magic": artifact[:4],
        "head": artifact[:40],
        "newer version": artifact.replace(version[0], newer),
        "a version that is none": artifact.replace(version[0], b"x" * len(version[0])),
        "trailing bytes": artifact + b"\0" * 1000,
        "twice": artifact + artifact,
        "zeros": artifact[:4] + b"\0" * 1000,
        "ones": artifact[:4] + b"\xff" * 1000,
        "bytecode of another producer": artifact[:4] + b"\x0dMLIR19.0.0git\0" + artifact[40:],
        "text in bytes": b"func.func public @main() {",
        "not UTF-8": b"\xff\xfe\x00module",
    }
