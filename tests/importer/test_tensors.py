"""Operators on tensors: older versions, all 8-bit operands, conversions, symbolic shapes, sequences, derivatives."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402
from jquant.reference import narrow_floats as reference_floats  # noqa: E402

from .node_models import FLOAT, computed, floats, int64, integers, model_of, node_model  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

INT8, INT32, INT64 = (onnx.TensorProto.DataType.Value(name) for name in ("INT8", "INT32", "INT64"))
X = floats(2, 3, 4)
LEVELS = integers(-9, 9, 3, 4, dtype=np.int32)
OLDER = {  # of versions that take attributes for operands, or whose result differs
    "Clip": [("Clip", 7, [X], {"min": -0.5, "max": 0.5}), ("Clip", 10, [X], {"max": 0.5})],
    "Split": [
        ("Split", 7, [floats(4, 6)], {"axis": 1, "split": [2, 4], "outputs": 2}),
        ("Split", 11, [floats(4, 6)], {"axis": 1, "outputs": 3}),
        ("Split", 13, [floats(4, 6), int64(1, 3)], {"static": [1], "outputs": 2}),
        ("Split", 18, [floats(4, 7)], {"axis": -1, "num_outputs": 3, "outputs": 3}),
    ],
    "Pad": [
        ("Pad", 7, [floats(2, 3)], {"pads": [1, 0, 0, 2], "mode": "constant", "value": 1.5}),
        ("Pad", 10, [floats(3, 4)], {"pads": [1, 1, 2, 1], "mode": "reflect"}),
        ("Pad", 10, [floats(3, 4)], {"pads": [2, 1, 1, 1], "mode": "edge"}),
        ("Pad", 19, [floats(3, 4), int64(4, 5, 6, 7)], {"static": [1], "mode": "wrap"}),
    ],
    "Reduce": [
        (operator, 11, [abs(X)], {"axes": [-2], "keepdims": 0})
        for operator in ("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
    ],
    "Reduce integers": [
        (operator, 18, [LEVELS, int64(1)], {"static": [1], "keepdims": 0})
        for operator in ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceSumSquare")
    ],
    "Reduce nothing": [
        (operator, 18, [abs(X)], {"noop_with_empty_axes": 1})
        for operator in ("ReduceSum", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceMax", "ReduceMean")
    ],
    "TopK": [
        ("TopK", 7, [floats(3, 5)], {"k": 2, "axis": 1, "outputs": 2}),
        ("TopK", 10, [floats(3, 5), int64(3)], {"static": [1], "outputs": 2}),
        ("TopK", 11, [integers(-128, 128, 300, dtype=np.int8), int64(9)], {"static": [1], "largest": 0, "outputs": 2}),
        ("TopK", 11, [integers(0, 256, 300, dtype=np.uint8), int64(9)], {"static": [1], "largest": 0, "outputs": 2}),
    ],
    "ArgMax": [("ArgMax", 7, [LEVELS], {"axis": 1}), ("ArgMin", 12, [LEVELS], {"axis": -1, "select_last_index": 1})],
    "Squeeze": [("Squeeze", 7, [floats(1, 3, 1)], {"axes": [0]}), ("Unsqueeze", 11, [floats(3)], {"axes": [-1, 0]})],
    "Slice": [
        ("Slice", 7, [floats(5, 6)], {"starts": [1, -3], "ends": [3, 1000], "axes": [0, 1]}),
        ("Slice", 13, [floats(5, 6), int64(-2), int64(-7), int64(1), int64(-2)], {"static": [1, 2, 3, 4]}),
    ],
    "Gather": [
        ("Gather", 11, [floats(4, 5), int64(0, -1)], {"axis": 1}),
        ("GatherElements", 11, [floats(4, 1), integers(-4, 4, 3, 1)], {"axis": 0}),
        ("GatherND", 12, [floats(2, 3, 4, 5), integers(-4, 4, 2, 3, 1)], {"batch_dims": 2}),
    ],
    "Scatter": [
        ("ScatterElements", 16, [floats(3, 4), np.array([[1, 1]]), floats(1, 2)], {"axis": 1, "reduction": "add"}),
        ("ScatterND", 18, [floats(4, 5), np.array([[1], [1]]), floats(2, 5)], {"reduction": "mul"}),
    ],
    "CumSum": [("CumSum", 11, [X, np.array(-1)], {"static": [1], "exclusive": 1, "reverse": 1})],
    "OneHot": [("OneHot", 11, [integers(-6, 7, 3, 4), np.array(5), int64(2, 7)], {"static": [1], "axis": 1})],
    "EyeLike": [("EyeLike", 9, [floats(3, 4)], {"k": 1}), ("EyeLike", 9, [LEVELS], {"dtype": FLOAT, "k": -1})],
    "DepthToSpace": [("DepthToSpace", 7, [floats(2, 8, 2, 3)], {"blocksize": 2})],
    "Dropout": [("Dropout", 7, [X], {"ratio": 0.3}), ("Dropout", 12, [X, np.float32(0.3)], {"static": [1]})],
    "Shrink": [("Shrink", 9, [LEVELS], {"lambd": 2.0, "bias": 1.5})],
    "Pow": [
        ("Pow", 12, [LEVELS, np.full((3, 4), 3, np.float32)], {}),
        ("Pow", 13, [abs(X), integers(0, 4, 3, 4, dtype=np.int32)], {}),
    ],
    "Unique": [("Unique", 11, [integers(0, 5, 20)], {"static": [0], "outputs": 4, "sorted": 0})],
    "Range": [("Range", 11, [np.float32(1), np.float32(9), np.float32(1.5)], {"static": [0, 1, 2]})],
}


@pytest.mark.parametrize("family", OLDER)
def test_older_versions_and_integers(family):
    """As ONNX's own implementation in NumPy computes them."""
    for operator, version, operands, options in OLDER[family]:
        proto, given = node_model(operator, version, operands, **options)
        actual = computed(proto, given)
        expected = ReferenceEvaluator(proto).run(None, given)
        for result, wanted in zip(actual.values(), expected, strict=True):
            assert result.shape == np.shape(wanted), operator
            if result.dtype.kind in "iub":
                np.testing.assert_array_equal(result, wanted, operator)
            else:
                assert result.dtype == wanted.dtype
                np.testing.assert_allclose(result, wanted, 1e-6, 1e-6, err_msg=operator)


def test_pad_takes_away_what_is_negative():
    x = floats(3, 4)
    proto, given = node_model("Pad", 13, [x, int64(1, -1, 0, 1), np.float32(3)], static=[1])
    np.testing.assert_array_equal(computed(proto, given)["y0"], np.pad(x[:, 1:], ((1, 0), (0, 1)), constant_values=3))
    proto, given = node_model("Pad", 18, [x, int64(-1, -2), None, int64(-1)], static=[1, 3], mode="edge")
    np.testing.assert_array_equal(computed(proto, given)["y0"], x[:, 1:2])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=str)
def test_all_pairs_of_8_bits(dtype):
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    defined = (b != 0) & ~((b == -1) & (a == limits.min))  # what a quotient needs
    divisor = np.where(defined, b, dtype(1))
    quotient = np.trunc(a / divisor.astype(np.float64)).astype(dtype)
    shift, bits = b.astype(np.int64), a.astype(np.int64)
    right = bits >> np.where((b < 0) | (shift > 7), 8, shift)
    left = np.where((b < 0) | (shift > 7), 0, bits << np.clip(shift, 0, 8))
    cases = [
        ("Div", (a, divisor), {}, quotient),
        ("Mod", (a, divisor), {}, np.mod(a, divisor)),
        ("Mod", (a, divisor), {"fmod": 1}, np.fmod(a, divisor)),
        ("BitShift", (a, b), {"direction": "LEFT"}, left.astype(dtype)),
        ("BitShift", (a, b), {"direction": "RIGHT"}, right.astype(dtype)),
    ]
    for operator, operands, attributes, expected in cases:
        proto, given = node_model(operator, 28, operands, **attributes)
        np.testing.assert_array_equal(computed(proto, given)["y0"], expected, f"{operator} {attributes}")
        folded = np.asarray(jquant.onnx.load(proto, constants=given)({}, {})["y0"])
        np.testing.assert_array_equal(folded, expected, f"{operator} {attributes}, static")


HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_casts_to_floats_of_8_bits(name, saturate):
    """All numbers of 16 bits, as ml_dtypes rounds them; out of range, ONNX's tables. Signs of NaN do not matter."""
    dtype = np.dtype(name)
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    proto, given = node_model("Cast", 28, [HALVES], to=to, saturate=saturate)
    largest = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(invalid="ignore"):  # at NaN
        expected = (np.clip(HALVES.astype(np.float32), -largest, largest) if saturate else HALVES).astype(dtype)
    np.testing.assert_array_equal(computed(proto, given)["y0"].astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"])
def test_casts_round_once(name, static):
    """Of float64 next to ties, which are ties in float32, and of integers that are more than float32 holds."""
    numbers = reference_floats.table(name).numbers
    middle = (numbers[1:] + numbers[:-1]) / 2
    doubles = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf), [1e300, np.inf, 1e-300]])
    wide = integers(-(2**62), 2**62, 100, dtype=np.int64)
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
    with jax.enable_x64(True):
        for x in (np.concatenate([doubles, -doubles]), wide, np.arange(-500, 500, dtype=np.int32)):
            proto, given = node_model("Cast", 28, [x], to=to)
            actual = jquant.onnx.load(proto, constants=given)({}, {})["y0"] if static else computed(proto, given)["y0"]
            expected = reference_floats.encode(x.astype(np.float64), name)
            np.testing.assert_array_equal(np.asarray(actual).view(np.uint8), expected)


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_casts_to_exponents(round_mode):
    """All positive numbers of 16 bits of bfloat16: the powers of two from 2**-127 on."""
    x = np.arange(2**15, dtype=np.uint16).view(ml_dtypes.bfloat16)
    to = onnx.TensorProto.DataType.Value("FLOAT8E8M0")
    with np.errstate(invalid="ignore"):  # at NaN
        wide = x.astype(np.float64)
    finite = np.isfinite(wide) & (wide > 0)
    below = np.exp2(np.floor(np.log2(wide, where=finite, out=np.zeros_like(wide))))
    rounded = {
        "up": np.where(wide > below, 2 * below, below),
        "down": below,
        "nearest": np.where(wide >= 1.5 * below, 2 * below, below),
    }[round_mode]
    smallest, largest = 2.0**-127, 2.0**127
    for saturate in (0, 1):
        proto, given = node_model("Cast", 28, [x], to=to, saturate=saturate, round_mode=round_mode)
        actual = computed(proto, given)["y0"].astype(np.float64)
        expected = np.where(finite, rounded, np.where(wide == 0, 0, np.inf))
        if saturate:
            expected = np.clip(expected, smallest, largest)
        else:
            expected = np.where((expected > largest) | (wide < smallest), np.nan, expected)
        expected = np.where(np.isnan(wide), np.nan, expected)
        np.testing.assert_array_equal(actual, expected)


def test_casts_to_4_bits_drop_the_higher_bits():
    x = np.arange(-40, 40, dtype=np.float32)
    for name, bits, signed in (("INT4", 4, True), ("UINT4", 4, False), ("INT2", 2, True), ("UINT2", 2, False)):
        proto, given = node_model("Cast", 28, [x], to=onnx.TensorProto.DataType.Value(name))
        expected = x.astype(np.int64) % 2**bits
        expected = expected - 2**bits * (signed & (expected >= 2 ** (bits - 1)))
        np.testing.assert_array_equal(computed(proto, given)["y0"].astype(np.int64), expected)


def test_bits_of_64_need_the_mode_that_has_them():
    proto, given = node_model("BitCast", 26, [int64(1, -1)], to=onnx.TensorProto.UINT64)
    with pytest.raises(ModelError, match=r"node 'y0' \(BitCast, version 26\): .*64"):
        computed(proto, given)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(computed(proto, given)["y0"], np.array([1, 2**64 - 1], np.uint64))


def test_powers_of_integers_are_exact():
    base, exponent = integers(-6, 7, 500, dtype=np.int32), integers(0, 11, 500, dtype=np.int32)
    expected = base.astype(np.int64) ** exponent
    for dtype in (np.int32, np.float32):
        proto, given = node_model("Pow", 15, [base, exponent.astype(dtype)])
        np.testing.assert_array_equal(computed(proto, given)["y0"], expected)
    proto, given = node_model("Pow", 15, [np.array([1, -1, -1, 2, 0], np.int32), np.array([-3, -3, -2, -1, 2], np.int32)])
    np.testing.assert_array_equal(computed(proto, given)["y0"], [1, -1, 1, 0, 0])


def test_shapes_with_a_symbolic_batch():
    """(batch, 6) in parts of one shape arithmetic: products, maxima, choices, ranges."""
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Split", ["shape"], ["batch", "width"], num_outputs=2),
        make("ReduceProd", ["shape"], ["count"], keepdims=1),
        make("Div", ["count", "two"], ["half"]),
        make("Concat", ["half", "two"], ["pairs"], axis=0),
        make("Reshape", ["x", "pairs"], ["in_pairs"]),
        make("Max", ["batch", "two"], ["larger"]),
        make("Equal", ["width", "two"], ["is_two"]),
        make("Where", ["is_two", "two", "larger"], ["chosen"]),
        make("Squeeze", ["chosen"], ["limit"]),
        make("Range", ["zero", "limit", "one"], ["counted"]),
        make("ScatterND", ["x", "first", "counted_row"], ["written"]),
        make("Tile", ["row", "batch_one"], ["tiled"]),
        make("Concat", ["batch", "one_row"], ["batch_one"], axis=0),
        make("Flatten", ["x"], ["flat"], axis=0),
    ]
    nodes = [nodes[-2], *nodes[:-2], nodes[-1]]
    nodes = [*nodes[1:3], nodes[0], *nodes[3:]]
    constants = {
        "two": int64(2),
        "zero": np.array(0),
        "one": np.array(1),
        "one_row": int64(1),
        "first": np.array([[0]]),
        "counted_row": floats(1, 6),
        "row": floats(1, 3),
    }
    declared = onnx.helper.make_tensor_value_info("x", FLOAT, ["batch", 6])
    model = jquant.onnx.load(
        model_of(nodes, {"x": declared}, ["in_pairs", "counted", "written", "tiled", "flat"], initializers=constants)
    )
    (batch,) = jax.export.symbolic_shape("batch")
    exported = jax.export.export(jax.jit(model))(model.params, {"x": jax.ShapeDtypeStruct((batch, 6), jnp.float32)})
    for size in (1, 5):
        x = floats(size, 6)
        results = exported.call(model.params, {"x": jnp.asarray(x)})
        np.testing.assert_array_equal(results["in_pairs"], x.reshape(-1, 2))
        np.testing.assert_array_equal(results["counted"], np.arange(max(size, 2)))
        np.testing.assert_array_equal(results["tiled"], np.tile(constants["row"], (size, 1)))
        np.testing.assert_array_equal(results["flat"], x.reshape(1, -1))
        np.testing.assert_array_equal(results["written"], np.concatenate([constants["counted_row"], x[1:]]))


@pytest.mark.parametrize(
    ("shape", "wanted", "expected"),
    [
        ((0, 6, 8), (0, 6, -1, 2), (0, 6, 4, 2)),
        ((0, 6, 8), (-1, 6, 2, 4), (0, 6, 2, 4)),
        ((0, 6, 8), (0, -1), (0, 48)),
        ((2, 0, 8), (-1, 0, 4), (4, 0, 4)),
    ],
)
def test_reshape_of_an_empty_batch(shape, wanted, expected):
    """Those of the graphs that transformers are: heads are as many as in any other batch."""
    proto, given = node_model("Reshape", 14, [floats(*shape), int64(*wanted)], [1])
    assert computed(proto, given)["y0"].shape == expected


def test_reshape_of_an_empty_batch_that_does_not_fit():
    proto, given = node_model("Reshape", 14, [floats(0, 6, 8), int64(0, 5, -1)], [1])
    message = r"^node 'y0' \(Reshape, version 14\): the -1 in \[0, 5, -1\] cannot be inferred from \[0, 6, 8\]$"
    with pytest.raises(ModelError, match=message):
        computed(proto, given)


def test_shapes_that_depend_on_data_are_named():
    with pytest.raises(ModelError, match=r"node 'y0' \(NonZero, version 13\): x is 'x0', which depends on the input 'x0'"):
        jquant.onnx.load(node_model("NonZero", 13, [LEVELS])[0])
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("ConstantOfShape", ["shape"], ["ones"], value=onnx.numpy_helper.from_array(int64(1))),
        make("NonZero", ["ones"], ["places"]),  # how older exporters write a range
        make("Add", ["places", "places"], ["y"]),
    ]
    assert computed(model_of(nodes, {"x": floats(4)}, ["y"]), {"x": floats(4)})["y"].tolist() == [[0, 2, 4, 6]]


def test_sequences():
    make = onnx.helper.make_node
    nodes = [
        make("SequenceConstruct", ["a", "b"], ["pair"]),
        make("SequenceInsert", ["pair", "c", "zero"], ["three"]),
        make("SequenceErase", ["three", "minus_one"], ["two"]),
        make("SequenceLength", ["three"], ["length"]),
        make("ConcatFromSequence", ["two"], ["joined"], axis=0),
        make("ConcatFromSequence", ["three"], ["stacked"], axis=1, new_axis=1),
        make("SequenceAt", ["three", "minus_one"], ["last"]),
        make("SequenceAt", ["three", "place"], ["picked"]),
        make("SplitToSequence", ["a"], ["scalars"], axis=0, keepdims=0),
        make("SequenceAt", ["scalars", "zero"], ["scalar"]),
        make("Reshape", ["stacked", "length_first"], ["by_length"]),
        make("Unsqueeze", ["length", "axis"], ["length_row"]),
        make("Concat", ["length_row", "axis_minus"], ["length_first"], axis=0),
    ]
    nodes = [*nodes[:-3], *nodes[:-4:-1][:2][::-1], nodes[-3]]
    a, b, c = floats(4), floats(4), floats(4)
    given = {"a": a, "b": b, "c": c, "place": np.array(-2)}
    constants = {"zero": np.array(0), "minus_one": np.array(-1), "axis": int64(0), "axis_minus": int64(-1)}
    outputs = ["joined", "stacked", "last", "picked", "scalar", "length", "by_length"]
    results = computed(model_of(nodes, given, outputs, initializers=constants), given)
    expected = {
        "joined": np.concatenate([c, a]),
        "stacked": np.stack([c, a, b], 1),
        "last": b,
        "picked": a,
        "scalar": a[0],
        "length": 3,
        "by_length": np.stack([c, a, b], 1).reshape(3, -1),
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value, name)


def test_positions_that_depend_on_data_need_tensors_of_one_shape():
    make = onnx.helper.make_node
    nodes = [make("SequenceConstruct", ["a", "b"], ["pair"]), make("SequenceAt", ["pair", "place"], ["y"])]
    given = {"a": floats(4), "b": floats(3), "place": np.array(0)}
    with pytest.raises(ModelError, match=r"node 'y' .*: its position depends on data"):
        computed(model_of(nodes, given, ["y"]), given)


ACTIVATIONS = {
    "Celu": {"alpha": 0.5},
    "Elu": {},
    "Gelu": {"approximate": "tanh"},
    "HardSigmoid": {},
    "HardSwish": {},
    "LeakyRelu": {},
    "Mish": {},
    "Relu": {},
    "Selu": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Swish": {"alpha": 0.5},
    "ThresholdedRelu": {},
}


def test_derivatives_of_activations_are_finite():
    """Also far from zero, where what is not chosen overflows."""
    make = onnx.helper.make_node
    nodes = [make(operator, ["x"], [operator], **attributes) for operator, attributes in ACTIVATIONS.items()]
    x = np.array([-1e4, -200, -1, 0, 1, 200, 1e4], np.float32)
    model = jquant.onnx.load(model_of(nodes, {"x": x}, list(ACTIVATIONS), 24))
    derivatives = jax.jit(jax.jacobian(lambda x: model(model.params, {"x": x})))(x)
    for operator, derivative in derivatives.items():
        assert np.isfinite(derivative).all(), operator
        assert abs(derivative[4, 4]) > 0 or operator == "ThresholdedRelu", operator


def test_vmap_is_a_loop():
    make = onnx.helper.make_node
    nodes = [
        make("TopK", ["x", "two"], ["values", "places"]),
        make("GatherElements", ["x", "places"], ["gathered"], axis=1),
        make("ScatterElements", ["x", "places", "values"], ["added"], axis=1, reduction="add"),
        make("ReverseSequence", ["x", "lengths"], ["turned"], batch_axis=0, time_axis=1),
        make("Trilu", ["x", "diagonal"], ["triangle"]),
    ]
    given = {"x": floats(3, 5), "lengths": int64(1, 5, 3), "diagonal": np.array(1)}
    outputs = ["values", "places", "gathered", "added", "turned", "triangle"]
    model = jquant.onnx.load(model_of(nodes, given, outputs, initializers={"two": int64(2)}))
    batch = {"x": floats(4, 3, 5), "lengths": integers(0, 6, 4, 3, dtype=np.int32), "diagonal": np.arange(4, dtype=np.int32)}
    together = jax.jit(jax.vmap(lambda inputs: model(model.params, inputs)))(batch)
    alone = jax.jit(model)
    for index in range(4):
        each = alone(model.params, {name: value[index] for name, value in batch.items()})
        for name in outputs:
            np.testing.assert_array_equal(together[name][index], each[name], name)
