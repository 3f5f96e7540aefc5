"""An encoder whose int8 weights the file widens to floats by Cast and Mul, as it was, with integers, and in onnxruntime.

    python -m benchmarks.models.widened [--rounds 100] [--tokens 16 64 128]

The file is made here, of random numbers, in the sizes of MiniLM: 6 layers, 384 wide, 12 heads. Prints the time of each way
to run it, the bytes of its parameters, and what loading it takes.
"""

import argparse
import functools
import multiprocessing
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.measure import measure, quartiles


class Sizes(NamedTuple):
    """How large an encoder is."""

    layers: int = 6
    width: int = 384
    hidden: int = 1536
    heads: int = 12
    words: int = 1000
    positions: int = 512


MINI_LM = Sizes()


def encoder(sizes: Sizes = MINI_LM, seed: int = 0) -> onnx.ModelProto:
    """A file of operator set 17, with inputs ``input_ids`` and ``attention_mask`` and the output ``last_hidden_state``.

    The matrices of products are int8, with a scale for each column.
    """
    graph = _Encoder(sizes, np.random.default_rng(seed))
    x = graph.embedded()
    for layer in range(sizes.layers):
        x = graph.layer(x, f"layer{layer}")
    graph.node("Identity", x, output="last_hidden_state")
    shape = ["batch", "length"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, sizes.width])
    made = helper.make_graph(graph.nodes, "encoder", inputs, [output], graph.initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


class _Encoder:
    """The nodes and the initializers, added one after the other."""

    def __init__(self, sizes: Sizes, rng: np.random.Generator):
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._sizes, self._rng = sizes, rng

    def node(self, operator: str, *inputs: str, output: str = "", **attributes) -> str:
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, name: str, *shape: int, mean: float = 0, spread: float = 0.02) -> str:
        return self.constant(name, self._rng.normal(mean, spread, shape).astype(np.float32))

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """A product with widened integers, and a bias."""
        integers = self._rng.integers(-127, 128, (rows, columns)).astype(np.int8)
        scale = self._rng.uniform(0.5, 1, columns).astype(np.float32) / np.float32(73 * rows**0.5)
        weights = self.node("Cast", self.constant(f"{name}.weight", integers), to=TensorProto.FLOAT)
        weights = self.node("Mul", weights, self.constant(f"{name}.scale", scale))
        return self.node("Add", self.node("MatMul", x, weights), self.floats(f"{name}.bias", columns))

    def normalized(self, x: str, name: str) -> str:
        width = self._sizes.width
        weight, bias = self.floats(f"{name}.weight", width, mean=1), self.floats(f"{name}.bias", width)
        return self.node("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-12)

    def embedded(self) -> str:
        """Embeddings, and what is added to the scores of padding."""
        sizes = self._sizes
        words = self.node("Gather", self.floats("words", sizes.words, sizes.width, spread=1), "input_ids")
        first = self.constant("first", np.array([0], np.int64))
        length = self.node("Shape", "input_ids", start=1, end=2)
        places = self.node("Slice", self.floats("positions", sizes.positions, sizes.width), first, length, first)
        mask = self.node("Unsqueeze", "attention_mask", self.constant("axes", np.array([1, 2], np.int64)))
        mask = self.node("Sub", self.number("1", 1), self.node("Cast", mask, to=TensorProto.FLOAT))
        self.node("Mul", mask, self.number("lowest", float(np.finfo(np.float32).min)), output="mask")
        self.constant("apart", np.array([0, 0, sizes.heads, -1], np.int64))
        self.constant("together", np.array([0, 0, sizes.width], np.int64))
        self.number("root", (sizes.width / sizes.heads) ** 0.5)
        self.number("root2", 2**0.5)
        self.number("half", 0.5)
        return self.normalized(self.node("Add", words, places), "embedding_norm")

    def layer(self, x: str, name: str) -> str:
        sizes = self._sizes
        width, hidden = sizes.width, sizes.hidden
        query, key, value = (
            self.node("Reshape", self.linear(x, f"{name}.{part}", width, width), "apart")
            for part in ("query", "key", "value")
        )
        query, value = (self.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (query, value))
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 2, 3, 1]))
        scores = self.node("Add", self.node("Div", scores, "root"), "mask")
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        mixed = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), "together")
        x = self.normalized(self.node("Add", self.linear(mixed, f"{name}.output", width, width), x), f"{name}.norm1")
        up = self.linear(x, f"{name}.up", width, hidden)
        bell = self.node("Add", self.node("Erf", self.node("Div", up, "root2")), "1")
        gelu = self.node("Mul", self.node("Mul", up, bell), "half")
        return self.normalized(self.node("Add", self.linear(gelu, f"{name}.down", hidden, width), x), f"{name}.norm2")


def inputs(tokens: int, sizes: Sizes = MINI_LM) -> dict[str, np.ndarray]:
    """One sentence without padding."""
    ids = np.random.default_rng(tokens).integers(0, sizes.words, (1, tokens))
    return {"input_ids": ids, "attention_mask": np.ones((1, tokens), np.int64)}


def contestants(path: Path, tokens: int) -> dict[Hashable, Callable[[], Any]]:
    """Calls of the ways to run the file."""
    import jax

    import jquant
    from benchmarks.models.profile import finish
    from jquant import transform
    from jquant.onnx import onnxruntime_session

    x, session = inputs(tokens), onnxruntime_session.session(path.read_bytes(), optimized=True)
    on_device = jax.device_put(x)
    calls: dict[Hashable, Callable[[], Any]] = {"onnxruntime": functools.partial(session.run, None, x)}
    for name in ("as_written", "fused"):
        model = jquant.onnx.load(path, qdq=name)
        calls[name] = functools.partial(finish, jax.jit(model), (model.params, on_device))
    model = jquant.onnx.load(path)
    quantized, params = transform.quantize(model, model.params, transform.dynamic_int8, x)
    calls["dynamic_int8"] = functools.partial(finish, jax.jit(quantized), (params, on_device))
    return calls


class Loading(NamedTuple):
    """What `load` takes.

    Attributes:
      seconds: how long.
      parameters: their bytes.
      kept: those of all arrays that the model keeps, with the tensors of the file that parameters were computed from.
      peak: how many more bytes the process had at its peak than before.
    """

    seconds: float
    parameters: int
    kept: int
    peak: int


def loading(path: Path, qdq: str) -> Loading:
    """In a process of its own, after a first load of a small file, which imports and compiles."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_load, (path, qdq))


def _load(path: Path, qdq: str) -> Loading:
    import jax

    import jquant

    jquant.onnx.load(encoder(Sizes(1, 16, 32, 2, 10, 16)), qdq=qdq)  # type: ignore[arg-type]
    before, start = _peak(), time.perf_counter()
    model = jquant.onnx.load(path, qdq=qdq)  # type: ignore[arg-type]
    seconds, peak = time.perf_counter() - start, _peak() - before
    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    file = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    replaced = sum(len(tensor.raw_data) for name, tensor in file.items() if name not in model.params)
    return Loading(seconds, parameters, parameters + (replaced if qdq == "as_written" else 0), peak)


def _peak() -> int:
    """The most memory that this process has had so far, in bytes.

    On Linux, what `resource` knows is passed on to processes that a process starts.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text()).group(1)) * 1024  # type: ignore[union-attr]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def lines(path: Path, tokens: list[int], rounds: int) -> Iterator[str]:
    yield f"{path.stat().st_size / 1e6:.1f} MB\n"
    yield "| | parameters, MB | kept, MB | loading, s | peak of loading, MB |\n|---|--:|--:|--:|--:|"
    for name in ("as_written", "fused"):
        of_load = loading(path, name)
        sizes = f"{of_load.parameters / 1e6:.1f} | {of_load.kept / 1e6:.1f}"
        yield f"| {name} | {sizes} | {of_load.seconds:.2f} | {of_load.peak / 1e6:.1f} |"
    for count in tokens:
        times = {name: quartiles(each.further) for name, each in measure(contestants(path, count), rounds).items()}
        yield f"\n| {count} tokens | median, ms | quartiles, ms | times onnxruntime's |\n|---|--:|--:|--:|"
        for name, (low, median, high) in times.items():
            yield f"| {name} | {median:.2f} | {low:.2f} to {high:.2f} | {median / times['onnxruntime'][1]:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models.widened",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        path.write_bytes(encoder().SerializeToString())
        for line in lines(path, arguments.tokens, arguments.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
