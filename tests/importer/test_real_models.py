"""Models of other people's: every integer, node by node, over onnxruntime's, and what comes out at the end."""

import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx import compare  # noqa: E402

from . import real_models as real  # noqa: E402

OTHERS = [
    "detection",
    "recognition",
    "classification",
    "smart-turn",
    "silero_vad",
    "title encoder",
    "title decoder",
]


def constants(name):
    return real.SPEECH if name == "silero_vad" else {}


def check_nodes(name, proto, count, what):
    """All integers are equal, each node fed with onnxruntime's values."""
    rows = compare.nodes(proto, real.inputs(name), constants=constants(name))
    assert rows
    assert [row for row in rows if row.different] == []
    count(f"integers equal to onnxruntime's, {what}", sum(row.integers for row in rows))
    return {row.operator: row for row in rows}


def check_end_to_end(name, proto, cosine):
    """With JAX's floats, whose last bits differ: the angle, and the largest element at most positions."""
    model = jquant.onnx.load(proto, constants=constants(name))
    outputs, _ = compare.end_to_end(model, proto, real.inputs(name), constants=constants(name), rounds=1)
    for output in outputs:
        assert output.cosine >= cosine, output
        assert output.argmax >= 0.9, output


@pytest.mark.parametrize("name", OTHERS)
def test_nodes(name, count):
    check_nodes(name, real.read(name), count, name)


@pytest.mark.parametrize("variant", real.VARIANTS)
def test_quantized_nodes(variant, count):
    rows = check_nodes("classification", real.quantized("classification", variant), count, f"classification, {variant}")
    assert rows["QuantizeLinear"].integers > 1_000_000
    assert ("QLinearConv" in rows) == variant.startswith("QOperator")


@pytest.mark.full
@pytest.mark.parametrize(("name", "variant"), [("detection", "QOperator uint8"), ("recognition", "QDQ per channel")])
def test_larger_quantized_nodes(name, variant, count):
    check_nodes(name, real.quantized(name, variant), count, f"{name}, {variant}")


@pytest.mark.parametrize("name", ["classification", "smart-turn", "silero_vad"])
def test_end_to_end(name):
    check_end_to_end(name, real.read(name), 0.999)


@pytest.mark.full
@pytest.mark.parametrize("name", ["detection", "recognition"])
def test_larger_end_to_end(name):
    check_end_to_end(name, real.read(name), 0.999)


@pytest.mark.full
@pytest.mark.parametrize("variant", real.VARIANTS)
def test_quantized_end_to_end(variant):
    check_end_to_end("classification", real.quantized("classification", variant), 0.999)


def test_fused():
    """What is fused in smart-turn, from its table."""
    model = jquant.onnx.load(real.read("smart-turn"), quantized="fused")
    (line,) = (line for line in str(model).splitlines() if "fused:" in line)
    assert line == "  fused: 34 MatMul, 16 Reshape, 12 Transpose, 4 Softmax, 3 Gemm, 2 Conv"
