"""Models of files that are loaded and exported again, through onnxruntime."""

from typing import Any, NamedTuple

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402
from jquant.onnx import onnxruntime_session as runtime  # noqa: E402


def outputs(proto, inputs: dict, *, optimized: bool = False) -> dict[str, Any]:
    """The outputs by name."""
    session = runtime.session(proto.SerializeToString(), optimized=optimized)
    if not any(isinstance(value, list) for value in inputs.values()):
        return runtime.run(session, inputs)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def same(actual: Any, expected: Any) -> bool:
    """Whether two values are bit for bit the same."""
    if isinstance(expected, list):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(same, actual, expected))
    if actual is None or expected is None:
        return actual is expected
    actual, expected = np.asarray(actual), np.asarray(expected)
    return (actual.dtype, actual.shape, actual.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def operators(proto) -> list[str]:
    """The operators of a model's nodes, with their domains."""
    return [f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in proto.graph.node]


def again(proto, inputs: dict, constants: dict | None = None, **options):
    """A file's model, exported again, and checked."""
    model = jquant.onnx.load(proto, constants=constants)
    exported = jquant.onnx.export(model, model.params, inputs, **options)
    onnx.checker.check_model(exported, full_check=True)
    return exported


def check_same(proto, inputs: dict, constants: dict | None = None, **options):
    """Checks that a model exported again computes what the file does, bit for bit, and returns it."""
    exported = again(proto, inputs, constants, **options)
    expected, actual = outputs(proto, {**inputs, **(constants or {})}), outputs(exported, inputs)
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert same(actual[name], value), name
    return exported


class Counts(NamedTuple):
    """How many integers and floats of all values in two models were compared, and how many of each differ."""

    integers: int
    different: int
    floats: int
    other_floats: int


def count_values(proto, exported, inputs: dict, constants: dict | None = None) -> Counts:
    """Compares the values that have the same name in both models."""
    expected = runtime.intermediate(proto, {**inputs, **(constants or {})})
    actual = runtime.intermediate(exported, inputs)
    totals = [0, 0, 0, 0]
    for name in expected.keys() & actual.keys():
        a, b = np.asarray(actual[name]), np.asarray(expected[name])
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        bits = f"V{b.dtype.itemsize}"
        different = np.count_nonzero(
            np.ascontiguousarray(a).reshape(-1).view(bits) != np.ascontiguousarray(b).reshape(-1).view(bits)
        )
        index = 0 if b.dtype.kind in "biu" else 2
        totals[index] += b.size
        totals[index + 1] += different
    return Counts(*totals)
