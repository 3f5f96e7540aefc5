"""Small models with random weights: a dynamically quantized encoder layer, and a QDQ network."""

import importlib

import numpy as np

WIDTH, HEADS, TOKENS = 32, 8, 50

ENCODER = """<ir_version: 10, opset_import: ["" : 18]>
encoder (int64[batch, length] tokens, float[batch, length, 32] noise)
    => (float[batch, length, 32] hidden, int64[batch, length] likeliest)
  <float table_scale = {0.02}, uint8 table_zero = {128}, int8 zero = {0}, float scale = {0.003}, float root = {0.35},
   int64[1] heads = {8}, int64[1] rest = {-1}, int64 axis0 = {0}, int64 axis1 = {1}, int64[1] first = {0},
   int64[1] second = {1}, int64[1] third = {2}, int64[1] width = {32}> {
    rows = Gather (table, tokens)
    embedded = DequantizeLinear (rows, table_scale, table_zero)
    x = Add (embedded, noise)
    shape = Shape (x)
    b = Slice (shape, first, second)
    l = Slice (shape, second, third)
    by_head = Concat <axis = 0> (b, l, heads, rest)
    flat = Concat <axis = 0> (b, l, width)
    xq, xs, xz = DynamicQuantizeLinear (x)
    factor = Mul (xs, scale)
    qi = MatMulInteger (xq, wq, xz, zero)
    qf = Cast <to = 1> (qi)
    q = Mul (qf, factor)
    ki = MatMulInteger (xq, wk, xz, zero)
    kf = Cast <to = 1> (ki)
    k = Mul (kf, factor)
    vi = MatMulInteger (xq, wv, xz, zero)
    vf = Cast <to = 1> (vi)
    v = Mul (vf, factor)
    q4 = Reshape (q, by_head)
    k4 = Reshape (k, by_head)
    v4 = Reshape (v, by_head)
    qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    vt = Transpose <perm = [0, 2, 1, 3]> (v4)
    products = MatMul (qt, kt)
    scores = Mul (products, root)
    weights = Softmax <axis = -1> (scores)
    mixed = MatMul (weights, vt)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    joined = Reshape (back, flat)
    jq, js, jz = DynamicQuantizeLinear (joined)
    oi = MatMulInteger (jq, wo, jz, zero)
    of = Cast <to = 1> (oi)
    ofactor = Mul (js, scale)
    o = Mul (of, ofactor)
    hidden = Add (x, o)
    rounded = Mul (hidden, root)
    likeliest = Cast <to = 7> (rounded)
}"""

QDQ = """<ir_version: 10, opset_import: ["" : 21]>
qdq (float[batch, 32] x) => (float[batch, 16] y)
  <float x_scale = {0.05}, uint8 x_zero = {128}, float w_scale = {0.01}, int8 w_zero = {0}> {
    xq = QuantizeLinear (x, x_scale, x_zero)
    xf = DequantizeLinear (xq, x_scale, x_zero)
    wf = DequantizeLinear (w, w_scale, w_zero)
    product = MatMul (xf, wf)
    sum = Add (product, bias)
    positive = Relu (sum)
    yq = QuantizeLinear (positive, x_scale, x_zero)
    y = DequantizeLinear (yq, x_scale, x_zero)
}"""


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    matrices = {name: rng.integers(-128, 128, (WIDTH, WIDTH), np.int8) for name in ("wq", "wk", "wv", "wo")}
    return {"table": rng.integers(0, 256, (TOKENS, WIDTH), np.uint8), **matrices}


def encoder():
    """The `ModelProto` of an encoder layer with dynamic quantization."""
    return _model(ENCODER, weights())


def qdq():
    """The `ModelProto` of a matrix product between QuantizeLinear and DequantizeLinear."""
    rng = np.random.default_rng(1)
    return _model(QDQ, {"w": rng.integers(-128, 128, (WIDTH, 16), np.int8), "bias": rng.normal(size=16).astype(np.float32)})


def _model(text: str, tensors: dict[str, np.ndarray]):
    model = importlib.import_module("onnx.parser").parse_model(text)
    helper = importlib.import_module("onnx.numpy_helper")
    model.graph.initializer.extend(helper.from_array(array, name) for name, array in tensors.items())
    return model


def inputs(batch: int = 8, length: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of the encoder."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(batch, length, WIDTH)).astype(np.float32)
    return {"tokens": rng.integers(-TOKENS, TOKENS, (batch, length)), "noise": noise}
