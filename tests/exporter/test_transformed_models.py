"""Float models that came from files are quantized, and exported as models again."""

import jax
import numpy as np
import pytest
from support.saturation import need_exact_products

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

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
    assert list(params["sites"]) == ["table", "turned", "filters", "down"]
    exported = jquant.onnx.export(function, params, INPUTS)
    declared = [(value.name, value.type.tensor_type.elem_type) for value in (*exported.graph.input, *exported.graph.output)]
    types = onnx.TensorProto
    assert declared == [("tokens", types.INT64), ("scores", types.FLOAT), ("best", types.INT64)]
    expected = jax.jit(function)(params, INPUTS)
    for optimized in (False, True):
        scores, best = run(exported, list(INPUTS.values()), optimized=optimized)
        np.testing.assert_array_equal(scores, expected["scores"])
        np.testing.assert_array_equal(best, expected["best"])


FORMATS = {
    f"{weights}_{activations}_{inputs}_{block}": transform.Scheme(
        weight_type=weights, activations=activations, activation_type=inputs, block_size=block
    )
    for weights in ("INT8", "UINT8", "INT4", "UINT4")
    for activations in ("FLOAT", "DYNAMIC", "DYNAMIC_ROW", "STATIC")
    for inputs in ("INT8", "UINT8")
    for block in (None, 16)
    if not (activations == "FLOAT" and inputs == "UINT8") and not (block and (activations == "DYNAMIC" or "8" in weights))
}
X = np.random.default_rng(2).normal(size=(5, 48)).astype(np.float32)


@pytest.fixture(scope="module")
def in_every_format():
    """A function with weights in each format, its parameters, and its results."""
    rng = np.random.default_rng(3)
    params = {name: rng.normal(size=(48, 8)).astype(np.float32) for name in FORMATS}
    recipe = transform.Recipe([*FORMATS.items()], smallest=0)

    def apply(params, x):
        return {name: x @ weights for name, weights in params.items()}

    calibration = transform.calibrate(apply, params, [X], recipe)
    quantized, stored = transform.quantize(apply, params, recipe, X, calibration=calibration)
    return quantized, stored, jax.jit(quantized)(stored, X)


@pytest.mark.gate
@pytest.mark.parametrize("form", ["exact", "qdq"])
def test_every_format_at_every_level_of_optimizations(in_every_format, form):
    """onnxruntime fuses nodes into others, not all of which it has kernels for: it must load what is written."""
    need_exact_products(np.uint8, np.int8)
    quantized, stored, expected = in_every_format
    model = jquant.onnx.export(quantized, stored, X, form=form).SerializeToString()
    for level in onnxruntime.GraphOptimizationLevel.__members__.values():
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 3
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        for name, result in zip(names, session.run(names, {"x": X}), strict=True):
            np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-5, err_msg=f"{name}, {level}")


def test_integers_of_4_bits_take_half_a_byte():
    """In the operator sets that have them; the floats of the scales, one for each 32 rows, stay."""
    rng = np.random.default_rng(4)
    params, x = {"w": rng.normal(size=(256, 64)).astype(np.float32)}, rng.normal(size=(3, 256)).astype(np.float32)
    quantized, stored = transform.quantize(lambda params, x: x @ params["w"], params, transform.int4_by_rows, x)
    small = jquant.onnx.export(quantized, stored, x)
    with pytest.warns(
        UserWarning, match=r"export: integers of 4 bits are written in 8, in a model of [\d,]+ bytes; opset=21"
    ):
        large = jquant.onnx.export(quantized, stored, x, opset=20)
    assert onnx.TensorProto.INT4 in {tensor.data_type for tensor in small.graph.initializer}
    saved = large.ByteSize() - small.ByteSize()
    assert 256 * 64 // 2 - 200 < saved <= 256 * 64 // 2  # but for the node that converts them
    for model in (small, large):
        for optimized in (False, True):
            (y,) = run(model, [x], optimized=optimized)
            np.testing.assert_array_equal(y, jax.jit(quantized)(stored, x))
