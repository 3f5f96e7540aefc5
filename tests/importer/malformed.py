"""Mutations of valid models, and a process that loads and runs the malformed models that result.

``python -m importer.malformed FIRST COUNT``, in the folder ``tests``, prints how each model ends. The memory of the process
and the time for each model are limited.
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
from onnx import TensorProto, helper, numpy_helper

from . import valid_models

SECONDS = 10  # for each model
MEMORY = 2**31  # bytes, beyond what the process uses before the first model
ADDRESS_SPACE = 12 * 2**30  # bytes, most of which JAX reserves and never touches
NUMBERS = [0, -1, 1, 2, 3, 255, 2**20, 10**9, 2**31 - 1, 2**31, 2**40, 2**62, -(2**31), -(2**63), 2**63 - 1]


def graphs_in(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph of a model, and all subgraphs."""
    graphs = [model.graph]
    for graph in graphs:
        graphs += [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return graphs


def random_node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice([node for graph in graphs_in(model) for node in graph.node])


def random_tensor(model: onnx.ModelProto, rng: random.Random) -> TensorProto:
    return rng.choice(list(model.graph.initializer))


def change_tensor_dimension(model, rng):
    dims = random_tensor(model, rng).dims
    if dims:
        dims[rng.randrange(len(dims))] = rng.choice(NUMBERS)
    else:
        dims.append(rng.choice(NUMBERS))


def change_declared_dimension(model, rng):
    value = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type.shape
    if value.dim:
        rng.choice(list(value.dim)).dim_value = rng.choice(NUMBERS)
    else:
        value.dim.add().dim_value = rng.choice(NUMBERS)


def change_tensor_type(model, rng):
    random_tensor(model, rng).data_type = rng.choice([*TensorProto.DataType.values(), 99, -1])


def change_input_type(model, rng):
    rng.choice(list(model.graph.input)).type.tensor_type.elem_type = rng.choice([*TensorProto.DataType.values(), 99])


def remove_initializer(model, rng):
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def remove_operand(model, rng):
    node = random_node(model, rng)
    if node.input:
        index = rng.randrange(len(node.input))
        if rng.random() < 0.5:
            del node.input[index]
        else:
            node.input[index] = rng.choice(["", "nobody"])


def add_operand(model, rng):
    random_node(model, rng).input.append(rng.choice(["x", "", "nobody", random_tensor(model, rng).name]))


def change_operand(model, rng):
    names = [name for graph in graphs_in(model) for node in graph.node for name in (*node.input, *node.output)]
    node = random_node(model, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def remove_input(model, rng):
    del model.graph.input[rng.randrange(len(model.graph.input))]


def remove_output(model, rng):
    outputs = rng.choice(graphs_in(model)).output
    if rng.random() < 0.5:
        del outputs[rng.randrange(len(outputs))]
    else:
        outputs[rng.randrange(len(outputs))].name = "nobody"


def remove_node(model, rng):
    graph = rng.choice(graphs_in(model))
    del graph.node[rng.randrange(len(graph.node))]


def make_cycle(model, rng):
    node = random_node(model, rng)
    if node.input:
        node.input[0] = rng.choice([*node.output, model.graph.output[0].name])


def shuffle_nodes(model, rng):
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def change_operator(model, rng):
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
    random_node(model, rng).op_type = rng.choice([*known, "Nonsense", "", "\x00"])


def change_domain(model, rng):
    random_node(model, rng).domain = rng.choice(["com.microsoft", "ai.onnx.ml", "nobody", "ai.onnx"])


def change_attribute(model, rng):
    node = random_node(model, rng)
    names = ["axis", "pads", "strides", "kernel_shape", "group", "to", "auto_pad", "body", "perm", "nonsense"]
    name = rng.choice([*names, *(a.name for a in node.attribute)])
    for index in reversed([i for i, a in enumerate(node.attribute) if a.name == name]):
        del node.attribute[index]
    number = rng.choice(NUMBERS)
    values = [number, float(number), [number] * rng.randint(1, 4), "nonsense", b"\xff", ["a", "b"], [0.5], model.graph]
    node.attribute.append(helper.make_attribute(name, rng.choice(values)))


def remove_attribute(model, rng):
    node = random_node(model, rng)
    if node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def change_element(model, rng):
    """Changes an element of an initializer, mostly of one that is a shape."""
    tensor = random_tensor(model, rng)
    integers = [each for each in model.graph.initializer if each.data_type == TensorProto.INT64]
    if integers and rng.random() < 0.8:
        tensor = rng.choice(integers)
    array = numpy_helper.to_array(tensor).copy() if not tensor.external_data else None
    if array is not None and array.size:
        array.reshape(-1)[rng.randrange(array.size)] = np.array(rng.choice(NUMBERS)).astype(array.dtype)
        tensor.CopyFrom(valid_models.constant(tensor.name, array))


def change_version(model, rng):
    model.opset_import[0].version = rng.choice([0, -1, 1, 6, 7, 9, 12, 13, 25, 28, 29, 10**9])


def change_data(model, rng):
    tensor = random_tensor(model, rng)
    tensor.raw_data = rng.randbytes(rng.choice([0, 1, 7, len(tensor.raw_data) + 1]))


def change_data_location(model, rng):
    tensor = random_tensor(model, rng)
    locations = ["../weights", "/etc/hostname", "/dev/zero", "link", "nobody", "", ".", "weights"]
    del tensor.external_data[:]
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", rng.choice(locations)
    if rng.random() < 0.5:
        entry = tensor.external_data.add()
        entry.key, entry.value = rng.choice(["offset", "length"]), str(rng.choice(NUMBERS))
    tensor.data_location = TensorProto.EXTERNAL


def add_recursion(model, rng):
    random_node(model, rng).attribute.append(helper.make_attribute(rng.choice(["body", "then_branch"]), model.graph))


MUTATIONS: list[Callable] = [  # those listed twice are drawn twice as often
    change_tensor_dimension,
    change_declared_dimension,
    change_tensor_type,
    change_input_type,
    remove_initializer,
    remove_operand,
    add_operand,
    change_operand,
    remove_input,
    remove_output,
    remove_node,
    make_cycle,
    shuffle_nodes,
    change_operator,
    change_domain,
    change_attribute,
    change_attribute,
    remove_attribute,
    change_element,
    change_element,
    change_version,
    change_data,
    change_data_location,
    add_recursion,
]


def mutated(number: int, folder: Path) -> tuple[bytes, str]:
    """The bytes of a malformed model, and a description of its mutations. Both depend on the number alone."""
    rng = random.Random(number)
    bases = [
        valid_models.quantized_convolutions,
        valid_models.integer_products,
        valid_models.control_flow,
        lambda: valid_models.external_data(folder),
    ]
    base = number % len(bases)
    model = bases[base]()
    draw = rng.random()
    if draw < 0.15:
        data = model.SerializeToString()
        return data[: rng.randrange(len(data))], f"{base}: truncated"
    if draw < 0.4:
        data = bytearray(model.SerializeToString())
        for _ in range(rng.choice([1, 1, 2, 5, 50])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data), f"{base}: changed bytes"
    applied = []
    for mutation in rng.choices(MUTATIONS, k=rng.choice([1, 1, 2, 3])):
        try:
            mutation(model, rng)
        except (IndexError, TypeError, ValueError, KeyError):  # an earlier mutation removed what this one needs
            continue
        applied.append(mutation.__name__)
    return model.SerializeToString(), f"{base}: {', '.join(applied)}"


def random_value(declared, rng) -> np.ndarray:
    shape = [size if isinstance(size, int) else 2 for size in declared.shape or ()]
    if np.prod([float(size) for size in shape]) > 10**6:
        raise InputTooLarge
    dtype = np.dtype(np.float32) if declared.dtype is None else declared.dtype
    return np.zeros(shape, dtype) if dtype.kind in "OUS" else rng.integers(0, 3, shape).astype(dtype)


class InputTooLarge(Exception):
    """The model declares an input that is too large to be made here."""


def outcome(path: Path) -> str:
    """How loading and running a model ends: "result", "error" (one that names its cause), or a description of a failure."""
    import jax

    import jquant.onnx

    try:
        model = jquant.onnx.load(path)
        str(model)
        rng = np.random.default_rng(0)
        inputs = {name: random_value(value, rng) for name, value in model.inputs.items()}
        jax.block_until_ready(jax.jit(model)(model.params, inputs))
    except jquant.onnx.ModelError as error:
        names_cause = str(path) in str(error) or "node " in str(error) or "input" in str(error)
        return "error" if names_cause else f"the error names nothing: {error}"
    except InputTooLarge:
        return "error"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "result"


class TimedOut(BaseException):
    """The time for one model is over."""


def time_out(*_):
    raise TimedOut


def main(first: int, count: int) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.jit(lambda x: x + 1)(1.0)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.signal(signal.SIGALRM, time_out)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "model"
        inside.mkdir()
        (Path(folder) / "weights").write_bytes(bytes(42))
        (inside / "link").symlink_to(Path(folder) / "weights")
        for number in range(first, first + count):
            data, mutations = mutated(number, inside)
            (inside / "model.onnx").write_bytes(data)
            print(json.dumps({"number": number, "mutations": mutations}), flush=True)  # before a crash can happen
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
            signal.alarm(SECONDS)
            try:
                end = outcome(inside / "model.onnx")
            except TimedOut:
                end = "timed out"
            finally:
                signal.alarm(0)
            used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            end = f"{used:,} bytes" if used > MEMORY else end
            seconds = time.monotonic() - start
            print(json.dumps({"number": number, "outcome": end, "seconds": round(seconds, 2), "used": used}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
