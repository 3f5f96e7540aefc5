"""Padded batches with a mask, and matrices that are packed when a model is loaded."""

import jax
import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant
import jquant.onnx
from jquant.onnx import ModelError

from .quantized_nodes import onnx

FLOAT32 = np.float32


def model(nodes, inputs, output, initializers) -> jquant.onnx.Model:
    """Nodes are of an operator, its inputs, its output, and attributes; with a scale, of com.microsoft."""
    helper = onnx.helper
    microsoft = ("QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
    graph = helper.make_graph(
        [
            helper.make_node(op, ins, outs, domain="com.microsoft" if op in microsoft else "", **attributes)
            for op, ins, outs, attributes in nodes
        ],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, dtype, shape in inputs
        ],
        [helper.make_tensor_value_info(output[0], helper.np_dtype_to_tensor_dtype(np.dtype(output[1])), output[2])],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return jquant.onnx.load(helper.make_model(graph, opset_imports=imports, ir_version=10))


def integers(rng, *sizes: int, dtype=np.int8) -> np.ndarray:
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, sizes, dtype, endpoint=True)


def dense(operator: str, rng) -> jquant.onnx.Model:
    """Quantizes tokens of 8 numbers dynamically and multiplies them."""
    weights = {"w": integers(rng, 8, 4), "s": np.asarray(0.02, FLOAT32), "z": np.asarray(3, np.int8)}
    fused = [("DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], {})]
    apart = [
        ("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"], {}),
        ("MatMulIntegerToFloat", ["q", "w", "qs", "s", "qz", "z"], ["y"], {}),
    ]
    nodes = fused if operator == "DynamicQuantizeMatMul" else apart
    return model(nodes, [("x", FLOAT32, ["n", "l", 8])], ("y", FLOAT32, ["n", "l", 4]), weights)


@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "DynamicQuantizeLinear"])
def test_padding_changes_nothing(operator):
    """A sentence in a padded batch of one, and what it is alone, bit for bit."""
    rng = np.random.default_rng(0)
    dense_layer = dense(operator, rng)
    program = jax.jit(lambda params, x, where: dense_layer(params, {"x": x}, where=where)["y"])
    alone = jax.jit(lambda params, x: dense_layer(params, {"x": x})["y"])
    for length in (1, 5, 9):
        x = rng.normal(size=(1, 9, 8)).astype(FLOAT32)
        x[:, length:] = 100  # of which nothing may be seen
        y = program(dense_layer.params, x, np.arange(9)[None] < length)
        np.testing.assert_array_equal(y[:, :length], alone(dense_layer.params, x[:, :length]))
    assert np.any(y != alone(dense_layer.params, x * 1.5))


def test_mask_of_a_batch():
    """One range for all of its sentences: that of the batch of their tokens alone."""
    rng = np.random.default_rng(1)
    dense_layer = dense("DynamicQuantizeMatMul", rng)
    x, where = rng.normal(size=(3, 6, 8)).astype(FLOAT32), rng.random((3, 6)) < 0.6
    y = dense_layer(dense_layer.params, {"x": np.where(where[..., None], x, 99)}, where=where)["y"]
    tokens = dense_layer(dense_layer.params, {"x": x[where][None]})["y"]
    np.testing.assert_array_equal(np.asarray(y)[where], tokens[0])


def test_mask_that_fits_nothing():
    dense_layer = dense("DynamicQuantizeLinear", np.random.default_rng(2))
    with pytest.raises(ModelError, match=r"where has shape \(2, 5\); no dynamically quantized activation has these"):
        dense_layer(dense_layer.params, {"x": np.zeros((2, 6, 8), FLOAT32)}, where=np.ones((2, 5), bool))


@pytest.mark.parametrize("dtype", [np.int32, FLOAT32])
def test_mask_that_is_not_boolean(dtype):
    """Of an attention mask of integers, say: what another number than 0 and 1 means there is not for the model to guess."""
    dense_layer = dense("DynamicQuantizeLinear", np.random.default_rng(2))
    mask = np.ones((2, 6), dtype)
    for where in (mask, (mask,), (mask == 1, mask)):
        with pytest.raises(ModelError, match=rf"^where has dtype {mask.dtype}; a mask must be boolean, such as mask != 0$"):
            dense_layer(dense_layer.params, {"x": np.zeros((2, 6, 8), FLOAT32)}, where=where)


def product(matrix, zero_point=None, **more) -> jquant.onnx.Model:
    names = ["a", "b", "", "z"] if zero_point is not None else ["a", "b"]
    initializers = {"b": matrix} | ({} if zero_point is None else {"z": zero_point}) | more
    return model([("MatMulInteger", names, ["y"], {})], [("a", np.uint8, [None, None])], ("y", np.int32, []), initializers)


ZERO_POINTS = [None, np.int8(3), np.array([3], np.int8), np.array([1, 2, 3, 4], np.int8), np.array([[1, 2, 3, 4]], np.int8)]


@pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=lambda x: str(np.shape(x)))
def test_matrices_are_packed(zero_point):
    """As they are, and with their zero point; plain ones in their place give the same integers."""
    rng = np.random.default_rng(3)
    a, b = integers(rng, 3, 5, dtype=np.uint8), integers(rng, 5, 4)
    given = product(b, None if zero_point is None else np.asarray(zero_point))
    assert isinstance(given.params["b"], jquant.PackedMatrix)
    expected = a.astype(np.int32) @ (b.astype(np.int32) - (0 if zero_point is None else zero_point))
    np.testing.assert_array_equal(given(given.params, {"a": a})["y"], expected)
    np.testing.assert_array_equal(jax.jit(given)(given.params | {"b": b}, {"a": a})["y"], expected)


@pytest.mark.parametrize("sizes", [(5,), (0, 4), (5, 0)])
def test_what_is_no_matrix_is_not_packed(sizes):
    a = np.ones((3, sizes[0]), np.uint8)
    given = product(np.ones(sizes, np.int8))
    assert not isinstance(given.params["b"], jquant.PackedMatrix)
    np.testing.assert_array_equal(given(given.params, {"a": a})["y"], a.astype(np.int32) @ np.ones(sizes, np.int32))


def test_a_batch_of_matrices():
    """Packed with one zero point for all; an array beside one for each matrix."""
    rng = np.random.default_rng(4)
    a, b = integers(rng, 3, 5, dtype=np.uint8), integers(rng, 2, 5, 4)
    for zero_point, is_packed in ((integers(rng, 4), True), (integers(rng, 2, 1, 4), False)):
        given = product(b, zero_point)
        assert isinstance(given.params["b"], jquant.PackedMatrix) == is_packed
        expected = a.astype(np.int32) @ (b.astype(np.int32) - zero_point)
        np.testing.assert_array_equal(given(given.params, {"a": a})["y"], expected)


def test_what_others_read_is_not_packed():
    """A matrix that is also an element-wise operand, has two zero points, or is transposed in one place."""
    rng = np.random.default_rng(5)
    a, b = integers(rng, 4, 4, dtype=np.uint8), integers(rng, 4, 4)
    one = ("MatMulInteger", ["a", "b", "", "z"], ["y1"], {})
    total = ("Add", ["y1", "y2"], ["y"], {})
    constants = {"b": b, "z": np.asarray(1, np.int8), "z2": np.asarray(2, np.int8)}
    inputs, output = [("a", np.uint8, [4, 4])], ("y", np.int32, [4, 4])
    wide = b.astype(np.int32)

    other = [("Cast", ["b"], ["y2"], {"to": onnx.TensorProto.INT32})]
    given = model([one, *other, total], inputs, output, constants)
    assert not isinstance(given.params["b"], jquant.PackedMatrix)
    np.testing.assert_array_equal(given(given.params, {"a": a})["y"], a.astype(np.int32) @ (wide - 1) + wide)

    for zero_point in ("z", "z2"):
        other = [("MatMulInteger", ["a", "b", "", zero_point], ["y2"], {})]
        given = model([one, *other, total], inputs, output, constants)
        assert isinstance(given.params["b"], jquant.PackedMatrix) == (zero_point == "z")
        expected = a.astype(np.int32) @ (2 * wide - 1 - constants[zero_point])
        np.testing.assert_array_equal(given(given.params, {"a": a})["y"], expected)

    scale = {"s": np.asarray(1, FLOAT32), "za": np.asarray(0, np.uint8)}
    gemms = [("QGemm", ["a", "s", "za", "b", "s", "z"], [f"y{i + 1}"], {"transB": i}) for i in range(2)]
    given = model([*gemms, total], inputs, ("y", FLOAT32, [4, 4]), constants | scale)
    assert not isinstance(given.params["b"], jquant.PackedMatrix)
    expected = a.astype(np.int32) @ (wide + wide.T - 2)
    np.testing.assert_array_equal(given(given.params, {"a": a})["y"], expected)


def test_transposed_matrices_are_packed_the_other_way():
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
    given = model(gemm, [("a", np.uint8, [3, 5])], ("y", FLOAT32, [3, 4]), constants)
    assert given.params["b"].shape == (5, 4)
    expected = (a.astype(np.int32) - 7) @ (b.T.astype(np.int32) - zero_point)
    np.testing.assert_array_equal(given(given.params, {"a": a})["y"], expected)
