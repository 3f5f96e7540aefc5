"""Small files that ask for all memory, and a process that loads and calls one after the other.

``python -m importer.hostile``, in the folder ``tests``, prints for each how it ends, and by how much the most memory of the
process has grown since the imports.
"""

import itertools
import json
import resource
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
BILLION = 10**9


def of_text(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def functions_of_functions(levels: int = 10, calls: int = 10) -> onnx.ModelProto:
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    functions = [helper.make_function("d", "f0", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], sets)]
    names = ["a", *(f"t{i}" for i in range(calls - 1)), "b"]
    for level in range(1, levels):
        nodes = [helper.make_node(f"f{level - 1}", [x], [y], domain="d") for x, y in itertools.pairwise(names)]
        functions.append(helper.make_function("d", f"f{level}", ["a"], ["b"], nodes, sets))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="d")], "g", [x], [y])
    return helper.make_model(graph, functions=functions, opset_imports=sets, ir_version=8)


def doubled(times: int, static: bool) -> onnx.ModelProto:
    """Concat of a value with itself, which a size depends on if it is `static`."""
    lines = "".join(f"t{i + 1} = Concat <axis = 0> (t{i}, t{i})\n" for i in range(times))
    if not static:
        return of_text(f"g (float[2] t0) => (float[n] t{times}) {{ {lines} }}")
    body = f"{lines} sum = ReduceSum <keepdims = 1> (t{times}) y = Expand (x, sum)"
    return of_text(f"g (float[1] x) => (float[n] y) <int64[2] t0 = {{1, 1}}> {{ {body} }}")


def sparse(count: int, size: int) -> onnx.ModelProto:
    one, first = np.ones(1, np.float32), np.zeros(1, np.int64)
    tensors = [
        onnx.SparseTensorProto(
            dims=[size], values=numpy_helper.from_array(one, f"v{i}"), indices=numpy_helper.from_array(first, f"i{i}")
        )
        for i in range(count)
    ]
    names = [f"v{i}" for i in range(count)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Concat", names, ["y"], axis=0)], "g", [], [y], sparse_initializer=tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def resized(mode: str) -> onnx.ModelProto:
    return of_text(f"""g (float[1, 1, 4] x) => (float[a, b, c] y) <float[3] s = {{1, 1, 1000000000}}> {{
      y = Resize <mode = "{mode}"> (x, , s)
    }}""")


def window(name: str, size: int) -> onnx.ModelProto:
    return of_text(f"g (float[1] x) => (float[n] y) <int64 n = {{{size}}}> {{ w = {name} (n) y = Mul (w, x) }}")


def large(node: str, constants: str, static: bool) -> onnx.ModelProto:
    """A node with a large result, which a size depends on if it is `static`."""
    rest = (
        "sum = ReduceSum <keepdims = 1> (large) one = Reshape (sum, e) y = Expand (x, one)"
        if static
        else "y = Identity (large)"
    )
    return of_text(
        f"g (float[1] x) => (float[n] y) <int64[1] e = {{1}}, int64[1] big = {{{BILLION}}}, {constants}> {{ {node} {rest} }}"
    )


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "functions of functions": functions_of_functions,
    "Concat of a value with itself": lambda: doubled(40, static=False),
    "Concat of a known value with itself": lambda: doubled(40, static=True),
    "a sparse initializer": lambda: sparse(1, 2**29),
    "sparse initializers": lambda: sparse(40, 2**26),
    **{f"Resize, {mode}": lambda mode=mode: resized(mode) for mode in ("nearest", "linear", "cubic")},
    **{name: lambda name=name: window(name, BILLION) for name in ("HannWindow", "HammingWindow", "BlackmanWindow")},
    "Expand": lambda: large("large = Expand (one1, big)", "int64[1] one1 = {1}", static=False),
    "Expand, known": lambda: large("large = Expand (one1, big)", "int64[1] one1 = {1}", static=True),
    "Tile, known": lambda: large("large = Tile (one1, big)", "int64[1] one1 = {1}", static=True),
    "Tile": lambda: large("large = Tile (one1, big)", "int64[1] one1 = {1}", static=False),
    "ConstantOfShape": lambda: large("large = ConstantOfShape (big)", "int64 z = {1}", static=False),
    "ConstantOfShape, known": lambda: large(
        "c = ConstantOfShape (big) large = Cast <to = 7> (c)", "int64 z = {1}", static=True
    ),
    "Range": lambda: large(
        "large = Range (z, last, d)", f"int64 z = {{0}}, int64 d = {{1}}, int64 last = {{{BILLION}}}", False
    ),
    "Range, known": lambda: large(
        "large = Range (z, last, d)", f"int64 z = {{0}}, int64 d = {{1}}, int64 last = {{{BILLION}}}", True
    ),
    "OneHot": lambda: large(
        "large = OneHot (z, depth, values)",
        f"int64[3] z = {{0, 1, 2}}, int64 depth = {{{BILLION}}}, float[2] values = {{0, 1}}",
        False,
    ),
    "Pad": lambda: large("large = Pad (v, pads)", f"float[1] v = {{1}}, int64[2] pads = {{0, {BILLION}}}", False),
}


def outcome(name: str) -> str:
    """How loading and calling a model ends: "refused", "result", or the error of another kind."""
    import jquant.onnx

    try:
        model = jquant.onnx.load(MODELS[name]().SerializeToString())
        model(
            model.params,
            {
                key: np.ones([size if isinstance(size, int) else 1 for size in value.shape], np.float32)
                for key, value in model.inputs.items()
            },
        )
    except jquant.onnx.ModelError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "result"


def main() -> None:
    import jax

    import jquant.onnx

    jax.config.update("jax_platforms", "cpu")
    jquant.onnx.load(doubled(1, static=False))
    jax.jit(lambda x: x + 1)(1.0)
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in MODELS:
        ended = outcome(name)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        print(json.dumps({"model": name, "outcome": ended, "MiB": grown}), flush=True)


if __name__ == "__main__":
    main()
