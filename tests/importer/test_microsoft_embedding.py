"""com.microsoft.QEmbedLayerNormalization: equal to onnxruntime where the order of addition does not matter."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jax
from onnx import parser

import jquant.onnx

from .quantized_nodes import Node, onnx, onnxruntime

FLOAT32 = np.float32
every_type = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def scalar(x) -> np.ndarray:
    return np.asarray(FLOAT32(x))


def embedding(rng, dtype, hidden: int, spread: int, scales, segments: bool = True) -> list[np.ndarray | None]:
    """The operands of QEmbedLayerNormalization, with integers at most `spread` away from their zero points."""
    limits = np.iinfo(dtype)
    ids, segment_ids = (rng.integers(0, count, (4, 8)).astype(np.int32) for count in (20, 3))
    sizes = [(20, hidden), (9, hidden), (3, hidden), (hidden,), (hidden,)]
    zero_points = [dtype(rng.integers(limits.min + spread, limits.max + 1 - spread)) for _ in sizes]
    tables: list[np.ndarray | None] = [
        (int(zero) + rng.integers(-spread, spread + 1, size)).astype(dtype)
        for size, zero in zip(sizes, zero_points, strict=True)
    ]
    scales = [scalar(each) for each in scales]
    if not segments:
        segment_ids = tables[2] = scales[2] = zero_points[2] = None
    mask = rng.integers(0, 3, (4, 8)).astype(np.int32)
    return [ids, segment_ids, *tables, mask, *scales, *zero_points]


@every_type
@pytest.mark.parametrize("segments", [True, False])
def test_embedding(dtype, segments):
    """Sums of 16 numbers, which are exact in any order, and sums of two numbers, which have a single order."""
    rng, options = np.random.default_rng(6), {"microsoft": True, "outputs": 2, "constant": range(2, 7)}
    operands = embedding(rng, dtype, 16, 3, (1, 2, 0.5, 0.013, 0.007), segments)
    Node("QEmbedLayerNormalization", *operands, epsilon=0.01, **options).assert_equal(*operands)
    operands = embedding(rng, dtype, 2, 100, 10 ** rng.uniform(-3, -1, 5), segments)
    operands[7] = None  # the mask
    Node("QEmbedLayerNormalization", *operands, **options).assert_equal(*operands)


def test_a_quantized_file(tmp_path):
    """The operator as `quantize_dynamic` writes it."""
    quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's tools are not installed")
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        embedding (int32[4, 8] ids, int32[4, 8] segment_ids, int32[4, 8] mask) => (float[4, 8, 2] y, int32[4] counts) {
            y, counts = com.microsoft.EmbedLayerNormalization <epsilon = 1e-12>
                (ids, segment_ids, words, positions, segments, gamma, beta, mask)
        }""")
    rng = np.random.default_rng(8)
    tables = {"words": (20, 2), "positions": (9, 2), "segments": (3, 2), "gamma": (2,), "beta": (2,)}
    for name, size in tables.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=size).astype(FLOAT32), name))
    quantization.quantize_dynamic(model, tmp_path / "quantized.onnx", extra_options={"DefaultTensorType": 1})
    saved = onnx.load(tmp_path / "quantized.onnx")
    assert [node.op_type for node in saved.graph.node] == ["QEmbedLayerNormalization"]
    ids, segment_ids, *_, mask = embedding(rng, np.uint8, 2, 0, [1] * 5)[:8]
    inputs = {"ids": ids, "segment_ids": segment_ids, "mask": mask}
    ours = jquant.onnx.load(saved)
    theirs = onnxruntime.InferenceSession(saved.SerializeToString(), providers=["CPUExecutionProvider"])
    actual, (y, counts) = jax.jit(ours)(ours.params, inputs), theirs.run(None, inputs)
    np.testing.assert_array_equal(actual["y"], y)
    np.testing.assert_array_equal(actual["counts"], counts)
