"""Shape arithmetic: symbolic batches, empty batches, and shapes that depend on data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from .node_models import FLOAT, floats, int64, integers, model_of, node_model, run_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone


def test_shapes_with_a_symbolic_batch():
    """Products, maxima, selections and ranges that are computed from the shape (batch, 6)."""
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Split", ["shape"], ["batch", "width"], num_outputs=2),
        make("Concat", ["batch", "one_row"], ["batch_one"], axis=0),
        make("ReduceProd", ["shape"], ["count"], keepdims=1),
        make("Div", ["count", "two"], ["half"]),
        make("Concat", ["half", "two"], ["pairs"], axis=0),
        make("Reshape", ["x", "pairs"], ["in_pairs"]),
        make("Max", ["batch", "two"], ["larger"]),
        make("Equal", ["width", "two"], ["is_two"]),
        make("Where", ["is_two", "two", "larger"], ["selected"]),
        make("Squeeze", ["selected"], ["limit"]),
        make("Range", ["zero", "limit", "one"], ["range"]),
        make("ScatterND", ["x", "first", "new_row"], ["scattered"]),
        make("Tile", ["row", "batch_one"], ["tiled"]),
        make("Flatten", ["x"], ["flat"], axis=0),
    ]
    constants = {
        "two": int64(2),
        "zero": np.array(0),
        "one": np.array(1),
        "one_row": int64(1),
        "first": np.array([[0]]),
        "new_row": floats(1, 6),
        "row": floats(1, 3),
    }
    declared = onnx.helper.make_tensor_value_info("x", FLOAT, ["batch", 6])
    model = jquant.onnx.load(
        model_of(nodes, {"x": declared}, ["in_pairs", "range", "scattered", "tiled", "flat"], initializers=constants)
    )
    (batch,) = jax.export.symbolic_shape("batch")
    exported = jax.export.export(jax.jit(model))(model.params, {"x": jax.ShapeDtypeStruct((batch, 6), jnp.float32)})
    for size in (1, 5):
        x = floats(size, 6)
        results = exported.call(model.params, {"x": jnp.asarray(x)})
        np.testing.assert_array_equal(results["in_pairs"], x.reshape(-1, 2))
        np.testing.assert_array_equal(results["range"], np.arange(max(size, 2)))
        np.testing.assert_array_equal(results["tiled"], np.tile(constants["row"], (size, 1)))
        np.testing.assert_array_equal(results["flat"], x.reshape(1, -1))
        np.testing.assert_array_equal(results["scattered"], np.concatenate([constants["new_row"], x[1:]]))


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        ((0, 6, 8), (0, 6, -1, 2), (0, 6, 4, 2)),
        ((0, 6, 8), (-1, 6, 2, 4), (0, 6, 2, 4)),
        ((0, 6, 8), (0, -1), (0, 48)),
        ((2, 0, 8), (-1, 0, 4), (4, 0, 4)),
    ],
)
def test_reshape_of_an_empty_batch(shape, target, expected):
    """As in transformers, where the number of heads is inferred even if the batch is empty."""
    proto, inputs = node_model("Reshape", 14, [floats(*shape), int64(*target)], [1])
    assert run_model(proto, inputs)["y0"].shape == expected


def test_reshape_of_an_empty_batch_that_does_not_fit():
    proto, inputs = node_model("Reshape", 14, [floats(0, 6, 8), int64(0, 5, -1)], [1])
    message = r"^node 'y0' \(Reshape, version 14\): the -1 in \[0, 5, -1\] cannot be inferred from \[0, 6, 8\]$"
    with pytest.raises(ModelError, match=message):
        run_model(proto, inputs)


def test_shapes_that_depend_on_data_are_named():
    with pytest.raises(ModelError, match=r"node 'y0' \(NonZero, version 13\): x is 'x0', which depends on the input 'x0'"):
        jquant.onnx.load(node_model("NonZero", 13, [integers(-9, 9, 3, 4, dtype=np.int32)])[0])
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("ConstantOfShape", ["shape"], ["ones"], value=onnx.numpy_helper.from_array(int64(1))),
        make("NonZero", ["ones"], ["indices"]),  # how older exporters write a range
        make("Add", ["indices", "indices"], ["y"]),
    ]
    assert run_model(model_of(nodes, {"x": floats(4)}, ["y"]), {"x": floats(4)})["y"].tolist() == [[0, 2, 4, 6]]
