"""Quantized transposed convolutions, and decoders that have them, exported and imported again."""

import jax
import numpy as np
import pytest
from support.sampling import one_in
from support.saturation import need_exact_products_of

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("flax", reason="flax is not installed (extra: test)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from support.decoders import DECODERS, shares  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant import transform  # noqa: E402
from jquant.calibration import Range  # noqa: E402
from jquant.onnx.compare.measures import decibels_of  # noqa: E402

from ..transform.test_transposed_convolutions import RECIPES, draw  # noqa: E402
from .running import run, run_reference  # noqa: E402

FORMS = "exact", "qdq"
CASES, INTEGERS = 48, [name for name, scheme in RECIPES.items() if scheme.activations != "FLOAT"]


def imported(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The output of a model that jquant reads."""
    loaded = jquant.onnx.load(model)
    (name,), (output,) = loaded.inputs, loaded.outputs
    return np.asarray(jax.jit(loaded)(loaded.params, {name: x})[output])


@one_in(24, ("seed", "form"), [(seed, form) for seed in range(CASES) for form in FORMS], others="full")
def test_random_convolutions(seed, form):
    """Equal in onnxruntime, optimized or not, in ONNX's own evaluator, and imported again."""
    case = draw(seed)
    recipe = INTEGERS[seed % len(INTEGERS)]
    scheme = RECIPES[recipe]
    x = case.arranged(case.x, "NC", case.layout[0]).astype(np.float32)
    params = {"filter": case.arranged(case.filter, "OI", case.layout[1]).astype(np.float32)}
    calibration = {"filter": Range(np.float32(-1), np.float32(1.5))} if scheme.activations == "STATIC" else None
    rules = transform.Recipe([("*", scheme)], smallest=1)
    function, quantized = transform.quantize(case.apply, params, rules, x, calibration=calibration)
    expected = np.asarray(jax.jit(function)(quantized, x))
    model = jquant.onnx.export(function, quantized, x, form=form)
    assert "ConvTranspose" not in {node.op_type for node in model.graph.node}  # of floats
    np.testing.assert_array_equal(run_reference(model, [x])[0], expected, strict=True)
    np.testing.assert_array_equal(imported(model, x), expected, strict=True)
    need_exact_products_of(scheme)
    for optimized in (False, True):
        np.testing.assert_array_equal(run(model, [x], optimized=optimized)[0], expected, strict=True)


TRANSPOSED = {"DCGAN generator": 0.88, "U-Net": 0.03}  # the least shares of the multiply-adds that these layers have


@pytest.mark.parametrize(
    "name", [pytest.param("DCGAN generator", marks=pytest.mark.gate), pytest.param("U-Net", marks=pytest.mark.full)]
)
def test_decoders(name):
    """Integers compute all of their multiply-adds, in a file of about a quarter of the bytes."""
    decoder = DECODERS[name]()
    rules = transform.dynamic_int8_rows.rules  # int8 by int8, which every processor computes exactly in onnxruntime
    recipe = transform.Recipe(rules, smallest=1)
    integers, transposed = shares(decoder, recipe)
    assert integers == 1
    assert transposed >= TRANSPOSED[name]
    function, params = transform.quantize(decoder.function, decoder.params, recipe, decoder.x)
    y, expected = (
        np.asarray(jax.jit(each)(values, decoder.x))
        for each, values in ((decoder.function, decoder.params), (function, params))
    )
    assert decibels_of(expected, y) > 25
    model = jquant.onnx.export(function, params, decoder.x)
    (output,) = run(model, [decoder.x], optimized=True)
    assert decibels_of(output, expected) > 60  # libraries add the floats between sites in their own orders
