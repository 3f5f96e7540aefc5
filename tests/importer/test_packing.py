"""Integer matrices that are packed when a model is loaded."""

import gc
import weakref

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx.running.packing import IntegerMatrix  # noqa: E402

from .quantized_models import integers, load_model  # noqa: E402

FLOAT32 = np.float32


def load_product(matrix, zero_point=None) -> jquant.onnx.Model:
    """A model of MatMulInteger with a constant matrix."""
    names = ["a", "b", "", "z"] if zero_point is not None else ["a", "b"]
    constants = {"b": matrix} | ({} if zero_point is None else {"z": zero_point})
    return load_model([("MatMulInteger", names, ["y"], {})], [("a", np.uint8, [None, None])], ("y", np.int32, []), constants)


ZERO_POINTS = [None, np.int8(3), np.array([3], np.int8), np.array([1, 2, 3, 4], np.int8), np.array([[1, 2, 3, 4]], np.int8)]


@pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=lambda x: str(np.shape(x)))
def test_matrices_are_packed(zero_point):
    """With their zero points, if there are any. Unpacked parameters give the same integers."""
    rng = np.random.default_rng(3)
    a, b = integers(rng, 3, 5, dtype=np.uint8), integers(rng, 5, 4)
    model = load_product(b, None if zero_point is None else np.asarray(zero_point))
    assert isinstance(model.params["b"], jquant.PackedMatrix)
    expected = a.astype(np.int32) @ (b.astype(np.int32) - (0 if zero_point is None else zero_point))
    np.testing.assert_array_equal(model(model.params, {"a": a})["y"], expected)
    np.testing.assert_array_equal(jax.jit(model)(model.params | {"b": b}, {"a": a})["y"], expected)


@pytest.mark.parametrize("sizes", [(5,), (0, 4), (5, 0)])
def test_vectors_and_empty_matrices_are_not_packed(sizes):
    a = np.ones((3, sizes[0]), np.uint8)
    model = load_product(np.ones(sizes, np.int8))
    assert not isinstance(model.params["b"], jquant.PackedMatrix)
    np.testing.assert_array_equal(model(model.params, {"a": a})["y"], a.astype(np.int32) @ np.ones(sizes, np.int32))


def test_a_batch_of_matrices():
    """Packed if all matrices share their zero points, but not with zero points per matrix."""
    rng = np.random.default_rng(4)
    a, b = integers(rng, 3, 5, dtype=np.uint8), integers(rng, 2, 5, 4)
    for zero_point, is_packed in ((integers(rng, 4), True), (integers(rng, 2, 1, 4), False)):
        model = load_product(b, zero_point)
        assert isinstance(model.params["b"], jquant.PackedMatrix) == is_packed
        expected = a.astype(np.int32) @ (b.astype(np.int32) - zero_point)
        np.testing.assert_array_equal(model(model.params, {"a": a})["y"], expected)


def test_matrices_with_other_readers_are_not_packed():
    """A matrix that is also cast, that has two zero points, or that is transposed for one of its readers."""
    rng = np.random.default_rng(5)
    a, b = integers(rng, 4, 4, dtype=np.uint8), integers(rng, 4, 4)
    product = ("MatMulInteger", ["a", "b", "", "z"], ["y1"], {})
    total = ("Add", ["y1", "y2"], ["y"], {})
    constants = {"b": b, "z": np.asarray(1, np.int8), "z2": np.asarray(2, np.int8)}
    inputs, output = [("a", np.uint8, [4, 4])], ("y", np.int32, [4, 4])
    wide = b.astype(np.int32)

    other = [("Cast", ["b"], ["y2"], {"to": onnx.TensorProto.INT32})]
    model = load_model([product, *other, total], inputs, output, constants)
    assert not isinstance(model.params["b"], jquant.PackedMatrix)
    np.testing.assert_array_equal(model(model.params, {"a": a})["y"], a.astype(np.int32) @ (wide - 1) + wide)

    for zero_point in ("z", "z2"):
        other = [("MatMulInteger", ["a", "b", "", zero_point], ["y2"], {})]
        model = load_model([product, *other, total], inputs, output, constants)
        assert isinstance(model.params["b"], jquant.PackedMatrix) == (zero_point == "z")
        expected = a.astype(np.int32) @ (2 * wide - 1 - constants[zero_point])
        np.testing.assert_array_equal(model(model.params, {"a": a})["y"], expected)

    scale = {"s": np.asarray(1, FLOAT32), "za": np.asarray(0, np.uint8)}
    gemms = [("QGemm", ["a", "s", "za", "b", "s", "z"], [f"y{i + 1}"], {"transB": i}) for i in range(2)]
    model = load_model([*gemms, total], inputs, ("y", FLOAT32, [4, 4]), constants | scale)
    assert not isinstance(model.params["b"], jquant.PackedMatrix)
    expected = a.astype(np.int32) @ (wide + wide.T - 2)
    np.testing.assert_array_equal(model(model.params, {"a": a})["y"], expected)


def test_transposed_matrices_are_packed_transposed():
    rng = np.random.default_rng(6)
    a, b, zero_point = integers(rng, 3, 5, dtype=np.uint8), integers(rng, 4, 5), integers(rng, 4)
    constants = {
        "b": b,
        "z": zero_point,
        "s": np.ones(4, FLOAT32),
        "sa": np.asarray(1, FLOAT32),
        "za": np.asarray(7, np.uint8),
    }
    gemm = [("QGemm", ["a", "sa", "za", "b", "s", "z"], ["y"], {"transB": 1})]
    model = load_model(gemm, [("a", np.uint8, [3, 5])], ("y", FLOAT32, [3, 4]), constants)
    assert model.params["b"].shape == (5, 4)
    expected = (a.astype(np.int32) - 7) @ (b.T.astype(np.int32) - zero_point)
    np.testing.assert_array_equal(model(model.params, {"a": a})["y"], expected)


def test_the_matrices_of_the_file_are_gone_as_they_are_packed(monkeypatch):
    """So that of many matrices, memory holds one twice."""
    rng = np.random.default_rng(7)
    constants = {f"b{i}": integers(rng, 64, 64) for i in range(4)}
    products = [("MatMulInteger", ["a", name], [f"y{name}"], {}) for name in constants]
    casts = [("Cast", [f"y{name}"], [f"z{name}"], {"to": onnx.TensorProto.FLOAT}) for name in constants]
    total = ("Sum", [f"z{name}" for name in constants], ["y"], {})
    packed: list[weakref.ref[np.ndarray]] = []
    pack = IntegerMatrix.pack

    def watched(self, matrix, zero_point):
        gc.collect()  # JAX keeps arrays that it is done with until then
        assert not any(reference() is not None for reference in packed)
        packed.append(weakref.ref(matrix))
        return jax.block_until_ready(pack(self, matrix, zero_point))

    monkeypatch.setattr(IntegerMatrix, "pack", watched)
    inputs = [("a", np.uint8, [None, None])]
    load_model([*products, *casts, total], inputs, ("y", FLOAT32, [None, 64]), constants)
    assert len(packed) == 4
