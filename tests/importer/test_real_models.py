"""Published models against onnxruntime: every integer, node by node, and the outputs."""

import os
import pathlib

import pytest
from support.saturation import need_exact_products

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx
from benchmarks.models import packages
from jquant.onnx import compare

from . import real_models as real

# Slow, or in wheels that only the full run downloads. Both versions of JAX run them there.
LARGE = {
    *real.MORE,
    "detection",
    "recognition",
    "classification",
    "QOperator uint8",
    "QOperator int8",
    "QOperator per channel",
    "QDQ uint8",
    "QDQ int8",
    "QDQ int16 per channel",
    "QDQ uint16",
}


NEWEST = {"QDQ per channel"}  # in the gate, on the newest JAX alone
SATURATING = {"voice filter"}  # in onnxruntime, without VNNI; no product of the other files here does on these inputs


def parameters(names):
    marks = dict.fromkeys(LARGE, pytest.mark.full) | dict.fromkeys(NEWEST, pytest.mark.gate)
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


def constants(name):
    return real.SPEECH if name == "silero_vad" else {}


def need_sums(name):
    if name in SATURATING:
        need_exact_products("uint8", "int8")


def check_nodes(name, proto, count, what):
    """Checks that all integers are equal, with each node fed with onnxruntime's values."""
    rows = compare.nodes(proto, real.inputs(name), constants=constants(name))
    assert rows
    assert [row for row in rows if row.different] == []
    count(f"integers equal to onnxruntime's, {what}", sum(row.integers for row in rows))
    return {row.operator: row for row in rows}


def check_end_to_end(name, proto, cosine):
    """Checks the angle and the positions of the largest elements, since the last bits of JAX's floats differ."""
    model = jquant.onnx.load(proto, constants=constants(name))
    outputs, _ = compare.end_to_end(model, proto, real.inputs(name), constants=constants(name), rounds=1)
    for output in outputs:
        assert output.cosine >= cosine, output
        assert output.argmax >= 0.9, output


@pytest.mark.parametrize("name", ["title encoder", "title decoder"])
def test_title_nodes(name, count):
    """Cast turns the logarithm of 0 into the least int64 in onnxruntime, the least int32 here. Add and Min read it."""
    need_exact_products("uint8", "int8")
    rows = compare.nodes(real.read(name), real.inputs(name))
    different = {row.operator: row.different for row in rows if row.different}
    assert different == dict.fromkeys(("Add", "Cast", "Min"), 9 if name == "title encoder" else 15)
    count(f"integers equal to onnxruntime's, {name}", sum(row.integers - row.different for row in rows))
    count(f"integers that need 64 bits and differ, {name}", sum(different.values()))


@pytest.mark.parametrize("name", parameters([name for name in real.FILES if not name.startswith("title")]))
def test_nodes(name, count):
    need_sums(name)
    check_nodes(name, real.read(name), count, name)


@pytest.mark.parametrize("variant", parameters(real.VARIANTS))
def test_quantized_nodes(variant, count):
    rows = check_nodes("classification", real.quantized("classification", variant), count, f"classification, {variant}")
    assert rows["QuantizeLinear"].integers > 1_000_000
    assert ("QLinearConv" in rows) == variant.startswith("QOperator")


@pytest.mark.full
@pytest.mark.parametrize(("name", "variant"), [("detection", "QOperator uint8"), ("recognition", "QDQ per channel")])
def test_larger_quantized_nodes(name, variant, count):
    check_nodes(name, real.quantized(name, variant), count, f"{name}, {variant}")


@pytest.mark.parametrize(
    "name", parameters(["classification", "smart-turn", "silero_vad", "detection", "recognition", *real.MORE])
)
def test_end_to_end(name):
    need_sums(name)
    check_end_to_end(name, real.read(name), 0.999)


@pytest.mark.full
@pytest.mark.parametrize("variant", real.VARIANTS)
def test_quantized_end_to_end(variant):
    check_end_to_end("classification", real.quantized("classification", variant), 0.999)


def test_fused():
    """The fused operators of smart-turn, from its summary."""
    model = jquant.onnx.load(real.read("smart-turn"), qdq="fused")
    (line,) = (line for line in str(model).splitlines() if "fused:" in line)
    assert line == "  fused: 34 MatMul, 16 Reshape, 12 Transpose, 4 Softmax, 3 Gemm, 2 Conv"


@pytest.mark.full
def test_benchmark():
    """The row of a file that has one form has its columns, and the two times and their ratio agree."""
    folder = pathlib.Path(os.environ["JQUANT_WHEELS"])
    cells = packages.line("diacritics, two networks", folder, rounds=1, profiled=False)[2:-2].split(" | ")
    assert len(cells) == packages.HEADER.splitlines()[0].count("|") - 1
    written, fused, engine, ratio = cells[3:7]
    assert fused == "same"
    assert abs(float(written) / float(engine) - float(ratio)) < 0.05  # of rounding
