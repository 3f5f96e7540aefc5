"""The example's float32 functions, which repeat onnxruntime's order of operations, against its nodes."""

import importlib

import jax
import numpy as np
import pytest
from support.example_programs import load_example

pytest.importorskip("onnx", reason="onnx is not installed (extra: models)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: models)")

parser = importlib.import_module("onnx.parser")
functions = load_example("onnxruntime_float32")

ATTRIBUTES = {"MatMul": "", "ReduceMean": "<axes = [-1], keepdims = 1>", "Softmax": "<axis = -1>", "Tanh": ""}


def assert_equal(function, operator: str, *operands: np.ndarray):
    values = dict(zip("ab"[: len(operands)], operands, strict=True))
    inputs = ", ".join(f"float[{','.join(map(str, x.shape))}] {name}" for name, x in values.items())
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
      graph ({inputs}) => (float y) {{ y = {operator} {ATTRIBUTES[operator]} ({", ".join(values)}) }}""")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, values)
    np.testing.assert_array_equal(jax.jit(function)(*operands), theirs, strict=True)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(23, 64, 23), (23, 23, 64), (2, 1, 5), (7, 128, 40), (1, 64, 17), (1, 17, 64), (1, 3, 5)]
)
def test_matmul(rows, terms, columns):
    assert_equal(functions.matmul, "MatMul", normal(3, 2, rows, terms), normal(3, 2, terms, columns))


@pytest.mark.parametrize("length", [8, 24, 512, 1000])
def test_mean(length):
    assert_equal(functions.mean, "ReduceMean", normal(1000, length) ** 2)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17, 23, 100])
def test_softmax(length):
    assert_equal(functions.softmax, "Softmax", 5 * normal(10_000, length))


def test_softmax_masked():
    """0 to 23 elements count; the others are the lowest float32, as in the padding of an encoder."""
    x = normal(1000, 23)
    x[np.arange(23) >= np.arange(1000)[:, None] % 24] = np.finfo(np.float32).min
    assert_equal(functions.softmax, "Softmax", x)


def test_tanh():
    x = np.linspace(-10, 10, 1_000_001, dtype=np.float32)
    assert_equal(functions.tanh, "Tanh", np.concatenate([x, x / 1e6, np.float32([np.inf, -np.inf])]))
