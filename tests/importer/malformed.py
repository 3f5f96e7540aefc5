"""Small models, ways to break them, and a process that loads and runs what came of it.

``python malformed.py FIRST COUNT`` prints, for each, how it ended; the process has little memory, and a time for each.
"""

import json
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

SECONDS = 10
MEMORY = 2**31  # bytes, beyond what the process has before the first model
ADDRESSES = 12 * 2**30  # bytes of address space, most of which JAX reserves and never touches


def declared(name: str, dtype: int, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)


def quantized_convolutions() -> onnx.ModelProto:
    """As quantizers write it: QuantizeLinear and DequantizeLinear around a convolution, a pool, and a matrix product."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["pq"]),
        helper.make_node("DequantizeLinear", ["pq", "s", "z"], ["pd"]),
        helper.make_node("Reshape", ["pd", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    initializers = [
        constant("s", np.float32(0.05)),
        constant("z", np.uint8(128)),
        constant("w", rng.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8)),
        constant("ws", rng.uniform(0.01, 0.02, 4).astype(np.float32)),
        constant("wz", np.zeros(4, np.int8)),
        constant("b", rng.normal(size=4).astype(np.float32)),
        constant("flat", np.array([0, -1], np.int64)),
        constant("m", rng.normal(size=(32, 5)).astype(np.float32)),
    ]
    inputs, outputs = [declared("x", 1, ["n", 3, 8, 8])], [declared("y", 1, ["n", 5])]
    return finished(helper.make_graph(nodes, "convolutions", inputs, outputs, initializers))


def integer_products() -> onnx.ModelProto:
    """Dynamic quantization, and shape arithmetic around it."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["batches"]),
        helper.make_node("Concat", ["batches", "rest"], ["wanted"], axis=0),
        helper.make_node("Expand", ["one", "wanted"], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["more"]),
        helper.make_node("DynamicQuantizeLinear", ["more"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz", "wz"], ["product"]),
        helper.make_node("Cast", ["product"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "qs"], ["scaled"]),
        helper.make_node("Slice", ["scaled", "starts", "ends"], ["y"]),
    ]
    initializers = [
        constant("zero", np.int64(0)),
        constant("axes", np.array([0])),
        constant("rest", np.array([6])),
        constant("one", np.ones((1, 1), np.float32)),
        constant("w", rng.integers(0, 255, (6, 7)).astype(np.uint8)),
        constant("wz", np.uint8(120)),
        constant("starts", np.array([0, 1])),
        constant("ends", np.array([9, 6])),
    ]
    inputs, outputs = [declared("x", 1, ["n", 6])], [declared("y", 1, ["n", 5])]
    return finished(helper.make_graph(nodes, "products", inputs, outputs, initializers))


def control_flow() -> onnx.ModelProto:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 16]>
net (bool c, float[3] x) => (float[3] y, float[r, 3] each)
    <int64 rounds = {4}, float[3] a = {1.0, 2.0, 3.0}, int64[1] times = {1}> {
  s = If (c) <
    then_branch = one () => (float[3] t) { t = Mul (x, a) },
    else_branch = two () => (float[3] e) { u = Sub (x, a) e = Tile (u, times) }>
  y, each = Loop (rounds, , s) <body = one (int64 i, bool g, float[3] v) => (bool d, float[3] w, float[3] o) {
    d = Identity (g)
    f = Cast <to = 1> (i)
    w = Add (v, f)
    o = Mul (w, a)
  }>
}""")
    onnx.checker.check_model(model)
    return model


def external(folder: Path) -> onnx.ModelProto:
    """One of whose initializers is in the file ``weights``."""
    model = integer_products()
    weights = next(each for each in model.graph.initializer if each.name == "w")
    (folder / "weights").write_bytes(weights.raw_data)
    onnx.external_data_helper.set_external_data(weights, "weights", 0, len(weights.raw_data))
    weights.ClearField("raw_data")
    return model


def finished(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


NUMBERS = [0, -1, 1, 2, 3, 255, 2**20, 10**9, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), -(2**63), 2**63 - 1]


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for graph in found:
        found += [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


def node_of(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice([node for graph in graphs(model) for node in graph.node])


def tensor_of(model: onnx.ModelProto, rng: random.Random) -> TensorProto:
    return rng.choice(list(model.graph.initializer))


def huge_dimension(model, rng):
    dims = tensor_of(model, rng).dims
    if dims:
        dims[rng.randrange(len(dims))] = rng.choice(NUMBERS)
    else:
        dims.append(rng.choice(NUMBERS))


def declared_dimension(model, rng):
    value = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type.shape
    if value.dim:
        rng.choice(list(value.dim)).dim_value = rng.choice(NUMBERS)
    else:
        value.dim.add().dim_value = rng.choice(NUMBERS)


def wrong_type(model, rng):
    tensor_of(model, rng).data_type = rng.choice([*TensorProto.DataType.values(), 99, -1])


def wrong_input_type(model, rng):
    rng.choice(list(model.graph.input)).type.tensor_type.elem_type = rng.choice([*TensorProto.DataType.values(), 99])


def missing_initializer(model, rng):
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def missing_operand(model, rng):
    node = node_of(model, rng)
    if node.input:
        index = rng.randrange(len(node.input))
        if rng.random() < 0.5:
            del node.input[index]
        else:
            node.input[index] = rng.choice(["", "nobody"])


def more_operands(model, rng):
    node_of(model, rng).input.append(rng.choice(["x", "", "nobody", tensor_of(model, rng).name]))


def other_operand(model, rng):
    names = [name for graph in graphs(model) for node in graph.node for name in (*node.input, *node.output)]
    node = node_of(model, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def missing_input(model, rng):
    del model.graph.input[rng.randrange(len(model.graph.input))]


def missing_output(model, rng):
    outputs = rng.choice(graphs(model)).output
    if rng.random() < 0.5:
        del outputs[rng.randrange(len(outputs))]
    else:
        outputs[rng.randrange(len(outputs))].name = "nobody"


def missing_node(model, rng):
    graph = rng.choice(graphs(model))
    del graph.node[rng.randrange(len(graph.node))]


def cycle(model, rng):
    node = node_of(model, rng)
    if node.input:
        node.input[0] = rng.choice([*node.output, model.graph.output[0].name])


def other_order(model, rng):
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def other_operator(model, rng):
    known = [
        "Conv",
        "MatMul",
        "Reshape",
        "Loop",
        "If",
        "Scan",
        "Gather",
        "ConstantOfShape",
        "Range",
        "Pad",
        "Resize",
        "LSTM",
    ]
    node_of(model, rng).op_type = rng.choice([*known, "Nonsense", "", "\x00"])


def other_domain(model, rng):
    node_of(model, rng).domain = rng.choice(["com.microsoft", "ai.onnx.ml", "nobody", "ai.onnx"])


def other_attribute(model, rng):
    node = node_of(model, rng)
    names = ["axis", "pads", "strides", "kernel_shape", "group", "to", "auto_pad", "body", "perm", "nonsense"]
    name = rng.choice([*names, *(a.name for a in node.attribute)])
    for index in reversed([i for i, a in enumerate(node.attribute) if a.name == name]):
        del node.attribute[index]
    number = rng.choice(NUMBERS)
    values = [number, float(number), [number] * rng.randint(1, 4), "nonsense", b"\xff", ["a", "b"], [0.5], model.graph]
    node.attribute.append(helper.make_attribute(name, rng.choice(values)))


def missing_attribute(model, rng):
    node = node_of(model, rng)
    if node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def other_number(model, rng):
    """In an initializer, above all in those that are shapes."""
    tensor = tensor_of(model, rng)
    integers = [each for each in model.graph.initializer if each.data_type == TensorProto.INT64]
    if integers and rng.random() < 0.8:
        tensor = rng.choice(integers)
    array = numpy_helper.to_array(tensor).copy() if not tensor.external_data else None
    if array is not None and array.size:
        array.reshape(-1)[rng.randrange(array.size)] = np.array(rng.choice(NUMBERS)).astype(array.dtype)
        tensor.CopyFrom(constant(tensor.name, array))


def other_versions(model, rng):
    model.opset_import[0].version = rng.choice([0, -1, 1, 6, 7, 9, 12, 13, 25, 28, 29, 10**9])


def other_data(model, rng):
    tensor = tensor_of(model, rng)
    tensor.raw_data = rng.randbytes(rng.choice([0, 1, 7, len(tensor.raw_data) + 1]))


def other_place(model, rng):
    tensor = tensor_of(model, rng)
    places = ["../weights", "/etc/hostname", "/dev/zero", "link", "nobody", "", ".", "weights"]
    del tensor.external_data[:]
    place = tensor.external_data.add()
    place.key, place.value = "location", rng.choice(places)
    if rng.random() < 0.5:
        place = tensor.external_data.add()
        place.key, place.value = rng.choice(["offset", "length"]), str(rng.choice(NUMBERS))
    tensor.data_location = TensorProto.EXTERNAL


def recursion(model, rng):
    node_of(model, rng).attribute.append(helper.make_attribute(rng.choice(["body", "then_branch"]), model.graph))


CHANGES: list[Callable] = [
    *(huge_dimension, declared_dimension, wrong_type, wrong_input_type, missing_initializer, missing_operand),
    *(more_operands, other_operand, missing_input, missing_output, missing_node, cycle, other_order, other_operator),
    *(other_domain, other_attribute, other_attribute, missing_attribute, other_number, other_number, other_versions),
    *(other_data, other_place, recursion),
]


def mutated(number: int, folder: Path) -> tuple[bytes, str]:
    """The bytes of a broken model, and what was done to it. The same number gives the same ones."""
    rng = random.Random(number)
    bases = [quantized_convolutions, integer_products, control_flow, lambda: external(folder)]
    base = number % len(bases)
    model = bases[base]()
    kind = rng.random()
    if kind < 0.15:
        data = model.SerializeToString()
        return data[: rng.randrange(len(data))], f"{base}: truncated"
    if kind < 0.4:
        data = bytearray(model.SerializeToString())
        for _ in range(rng.choice([1, 1, 2, 5, 50])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data), f"{base}: bytes"
    changes = rng.choices(CHANGES, k=rng.choice([1, 1, 2, 3]))
    done = []
    for change in changes:
        try:
            change(model, rng)
        except (IndexError, TypeError, ValueError, KeyError):  # it does not fit what an earlier one left
            continue
        done.append(change.__name__)
    return model.SerializeToString(), f"{base}: {', '.join(done)}"


def value_of(declared, rng) -> np.ndarray:
    shape = [size if isinstance(size, int) else 2 for size in declared.shape or ()]
    if np.prod([float(size) for size in shape]) > 10**6:
        raise SkipInput
    dtype = np.dtype(np.float32) if declared.dtype is None else declared.dtype
    return np.zeros(shape, dtype) if dtype.kind in "OUS" else rng.integers(0, 3, shape).astype(dtype)


class SkipInput(Exception):
    """The model declares inputs that are too large to be made here."""


def outcome(path: Path) -> str:
    """How it ends: "result", "error", or what must not be."""
    import jax

    import jquant.onnx

    try:
        model = jquant.onnx.load(path)
        str(model)
        rng = np.random.default_rng(0)
        inputs = {name: value_of(value, rng) for name, value in model.inputs.items()}
        jax.block_until_ready(jax.jit(model)(model.params, inputs))
    except jquant.onnx.ModelError as error:
        return "error" if str(path) in str(error) or "node " in str(error) or "input" in str(error) else f"nameless: {error}"
    except SkipInput:
        return "error"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "result"


class Late(BaseException):
    """It took too long."""


def late(*_):
    raise Late


def main(first: int, count: int) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.jit(lambda x: x + 1)(1.0)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    signal.signal(signal.SIGALRM, late)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "model"
        inside.mkdir()
        (Path(folder) / "weights").write_bytes(bytes(42))
        (inside / "link").symlink_to(Path(folder) / "weights")
        for number in range(first, first + count):
            data, what = mutated(number, inside)
            (inside / "model.onnx").write_bytes(data)
            print(json.dumps({"number": number, "what": what}), flush=True)  # so that a crash has a name
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
            signal.alarm(SECONDS)
            try:
                found = outcome(inside / "model.onnx")
            except Late:
                found = "late"
            finally:
                signal.alarm(0)
            used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            found = f"{used:,} bytes" if used > MEMORY else found
            seconds = time.monotonic() - start
            print(json.dumps({"number": number, "found": found, "seconds": round(seconds, 2), "used": used}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
