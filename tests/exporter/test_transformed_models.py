"""Float models that came from files are quantized, and exported as models again."""

import jax
import numpy as np
import pytest
from support.saturation import need_exact_products

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import numpy_helper, parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant import transform  # noqa: E402

from .running import run  # noqa: E402

SHAPES = {"table": (40, 32), "up": (64, 32), "bias": (64,), "filters": (48, 64, 3), "down": (48, 20)}
INPUTS = {"tokens": np.random.default_rng(1).integers(0, 40, (2, 9))}


@pytest.fixture(scope="module")
def loaded() -> jquant.onnx.Model:
    """A look-up, a dense layer of transposed weights, a convolution and a product, of tokens of 64 bits."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    net (int64[batch, length] tokens) => (float[batch, rest, 20] scores, int64[batch, rest] best) {
      rows = Gather (table, tokens)
      turned = Transpose <perm = [1, 0]> (up)
      product = MatMul (rows, turned)
      sum = Add (product, bias)
      hidden = Relu (sum)
      channels = Transpose <perm = [0, 2, 1]> (hidden)
      filtered = Conv (channels, filters)
      again = Transpose <perm = [0, 2, 1]> (filtered)
      scores = MatMul (again, down)
      best = ArgMax <axis = -1, keepdims = 0> (scores)
    }""")
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        values = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return jquant.onnx.load(proto)


@pytest.mark.parametrize("name", ["dynamic_int8", pytest.param("static_int8", marks=pytest.mark.gate)])
def test_integers(loaded, name):
    """Each site computes the integers that it has in JAX; the model has the inputs and the outputs of the file."""
    need_exact_products(np.uint8, np.int8)
    recipe = getattr(transform, name)
    calibration = transform.calibrate(loaded, loaded.params, [INPUTS], recipe) if name == "static_int8" else None
    function, params = transform.quantize(loaded, loaded.params, recipe, INPUTS, calibration=calibration)
    assert list(params["sites"]) == ["table", "up", "filters", "down"]
    exported = jquant.onnx.export(function, params, INPUTS)
    declared = [(value.name, value.type.tensor_type.elem_type) for value in (*exported.graph.input, *exported.graph.output)]
    types = onnx.TensorProto
    assert declared == [("tokens", types.INT64), ("scores", types.FLOAT), ("best", types.INT64)]
    expected = jax.jit(function)(params, INPUTS)
    for optimized in (False, True):
        scores, best = run(exported, list(INPUTS.values()), optimized=optimized)
        np.testing.assert_array_equal(scores, expected["scores"])
        np.testing.assert_array_equal(best, expected["best"])
