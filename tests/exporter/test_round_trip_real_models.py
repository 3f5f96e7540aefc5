"""Published models, loaded and exported again: every value that has the same name in both, through onnxruntime."""

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from ..importer import real_models as real  # noqa: E402
from .round_trips import Counts, check_same, count_values, operators  # noqa: E402

# How many integers and floats are compared.
COUNTS = {
    "title encoder": (969_836, 3_859_963),
    "title decoder": (1_128_600, 3_999_927),
    "smart-turn": (21_159_825, 74_148_804),
}


def check(name: str, proto, count) -> Counts:
    """Checks all values, and that no node is written as others."""
    inputs, constants = real.inputs(name), real.SPEECH if name == "silero_vad" else {}
    exported = check_same(proto, inputs, constants)
    counts = count_values(proto, exported, inputs, constants)
    assert (counts.different, counts.other_floats) == (0, 0)
    count("integers of models exported again", counts.integers)
    count("floats of models exported again", counts.floats)
    if name != "silero_vad":  # whose nodes are inside an If that is decided when it is loaded
        assert set(operators(exported)) <= set(operators(proto))
    return counts


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.gate if each == "smart-turn" else pytest.mark.full) for each in COUNTS]
)
def test_counted(name, count):
    counts = check(name, real.read(name), count)
    assert (counts.integers, counts.floats) == COUNTS[name]


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in real.FILES if name not in COUNTS])
def test_others(name, count):
    check(name, real.read(name), count)


@pytest.mark.full
@pytest.mark.parametrize("variant", real.VARIANTS)
def test_quantized(variant, count):
    counts = check("classification", real.quantized("classification", variant), count)
    assert counts.integers > 1_000_000
