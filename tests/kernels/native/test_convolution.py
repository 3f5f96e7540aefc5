"""The convolution by jquant-native: NumPy's bits in every program, and one call in each."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import random_convolutions
from support.comparison import assert_equal
from support.geometries import GEOMETRIES, reordered
from support.native import requires_native
from support.programs import together

import jquant
from jquant.arguments import convolutions
from jquant.cases import samples
from jquant.formulas.convolution_geometry import Geometry
from jquant.formulas.windows import Windows
from jquant.kernels import epilogue as epilogues
from jquant.kernels.convolution import composed
from jquant.kernels.convolution.dispatch import convolution
from jquant.kernels.epilogue import AddBias, Dequantize, Requantize
from jquant.kernels.native import convolution as native
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.reference import convolutions as reference

pytestmark = requires_native

CALL, PRODUCT = "custom_call @jquant_convolution", "custom_call @jquant_product"
BYTES = random_convolutions.BYTES
DTYPES = np.dtype(np.int32), *BYTES, np.dtype(np.float32), np.dtype(np.float16), jnp.dtype(jnp.bfloat16)
WINDOWS = Windows((3, 2), (2, 1), (1, 2), ((1, 0), (2, 1)))
OPTIONS = {"strides": WINDOWS.strides, "dilations": WINDOWS.dilations, "padding": WINDOWS.padding}
IN_MEMORY = [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NHWC", "OHWI", "NHWC")]  # nothing is transposed
LAYOUTS = [
    *IN_MEMORY,
    ("NHWC", "OIHW", "NCHW"),
    ("NHWC", "HOWI", "CNHW"),
    ("NCHW", "HWIO", "NHWC"),
    ("CHWN", "IHWO", "HWNC"),
]
BOTH_ORDERS = LAYOUTS[:2]  # of channels


@pytest.fixture(autouse=True)
def at_any_size(monkeypatch):
    """The library computes convolutions of few multiplications, too."""
    monkeypatch.setattr(native, "_FEWEST_MULTIPLICATIONS", 0)


def drawn(groups=1, batch=(2,)):
    """An image, filters, and their zero points, one of them for each filter, as NCHW and OIHW."""
    rng = np.random.default_rng(0)
    x, w = samples.integers(rng, np.uint8, *batch, 6, 9, 8), samples.integers(rng, np.int8, 10, 6 // groups, 3, 2)
    return x, w, samples.integers(rng, np.uint8), samples.integers(rng, np.int8, 10)


def arranged(operands, layout):
    """The same operands in a layout."""
    x, w, *zero_points = operands
    return reordered(x, "NCHW", layout[0]), reordered(w, "OIHW", layout[1]), *zero_points


def convolve(*operands, layout=LAYOUTS[0], groups=1):
    return jquant.convolution_integer(*operands, dimension_numbers=layout, groups=groups, **OPTIONS)


def expected_of(*operands, layout=LAYOUTS[0], groups=1):
    """The result by the reference, of operands as NCHW and OIHW."""
    return reordered(reference.convolution_integer(*operands, groups=groups, **OPTIONS), "NCHW", layout[2])


def lowered(function, *operands):
    return jax.jit(function).lower(*operands).as_text()


def assert_one_call(text):
    """Of the library, and nothing else that computes much."""
    assert text.count("custom_call") == text.count(CALL) == 1
    for operation in ("dot_general", "stablehlo.convolution", "reduce", "stablehlo.pad", "concatenate"):
        assert operation not in text


OPERATORS = {
    "integers": jquant.convolution_integer,
    "floats": lambda x, w, x_zero_point, w_zero_point, **options: jquant.convolution_integer_to_float(
        *(x, np.float32(0.1), x_zero_point, w, np.full(10, 0.2, np.float32), w_zero_point),
        np.arange(10, dtype=np.float32),
        **options,
    ),
    "bytes": lambda x, w, x_zero_point, w_zero_point, **options: jquant.quantized_linear_convolution(
        *(x, np.float32(0.1), x_zero_point, w, np.full(10, 0.2, np.float32), w_zero_point, np.float32(9), np.uint8(3)),
        np.arange(10, dtype=np.int32).reshape(1, 10, 1, 1),
        **options,
    ),
}


@pytest.mark.parametrize("layout", IN_MEMORY, ids="-".join)
@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_is_one_call(operator, layout):
    """It takes the image and the filters as they are, and leaves nothing to do for the elements of the result."""
    for groups in (1, 2):
        operands = arranged(drawn(groups), layout)
        function = functools.partial(OPERATORS[operator], dimension_numbers=layout, groups=groups, **OPTIONS)
        text = lowered(function, *operands)
        assert_one_call(text)
        assert "transpose" not in text
        results = re.findall(r" = stablehlo.* tensor<([\dx]+)x\w+>$", text, re.MULTILINE)
        sizes = [math.prod(map(int, result.split("x"))) for result in results]
        assert sum(size > operands[1].size for size in sizes) == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_every_layout(groups):
    operands = drawn(groups)
    functions = [functools.partial(convolve, layout=layout, groups=groups) for layout in LAYOUTS]
    results = together([(f, arranged(operands, layout)) for f, layout in zip(functions, LAYOUTS, strict=True)])
    for function, layout, result in zip(functions, LAYOUTS, results, strict=True):
        assert_one_call(lowered(function, *arranged(operands, layout)))
        assert_equal(result, expected_of(*operands, layout=layout, groups=groups), "-".join(layout))


def case_and_call(rng, rank, dtype):
    """A random convolution, and the call that computes it: a function and its operands."""
    case = random_convolutions.draw(rng, rank)
    while case.is_product:
        case = random_convolutions.draw(rng, rank)
    zero_points, biases = (case.x_zero_point, case.w_zero_point), (case.integer_bias, case.float_bias)
    scales = case.x_scale, case.w_scale, ScaleZeroPoint(case.y_scale, case.y_zero_point.astype(dtype))

    def function(x, w, zero_points, biases, scales):
        integer_bias, float_bias = biases
        x_scale, w_scale, output = scales
        epilogue = ()
        if dtype in BYTES:
            epilogue = () if integer_bias is None else (AddBias(integer_bias),)
            epilogue += (epilogues.requantize(x_scale, w_scale, output, dtype),)
        elif dtype != np.int32:
            epilogue = (epilogues.dequantize(x_scale, w_scale, float_bias, dtype),)
        return convolution(x, w, *zero_points, case.geometry, epilogue)

    return case, (function, (*case.arranged(), zero_points, biases, scales))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_random_geometries(gate, full, count, rank):
    """Groups, windows and padding of every kind, and every form of the operands and of the result."""
    rng = np.random.default_rng(rank)
    for _ in range(40 if full else 4 if gate else 1):
        dtypes = [DTYPES[index] for index in rng.integers(len(DTYPES), size=25)]
        cases, calls = zip(*(case_and_call(rng, rank, dtype) for dtype in dtypes), strict=True)
        functions, operands = zip(*calls, strict=True)

        def program(operands, functions=functions):
            return [function(*each) for function, each in zip(functions, operands, strict=True)]

        program = jax.jit(program).lower(operands)
        assert program.as_text().count(CALL) == len(cases)
        for case, dtype, result in zip(cases, dtypes, program.compile()(operands), strict=True):
            assert_equal(case.restored(np.asarray(result)), case.expected(dtype), case.describe())
        count("convolutions", len(cases))


# The geometries that the library declines: a product, and arrays without elements.
DECLINED = "one filter, one window", "an empty batch", "no channels"


def of_both_forms(x, w, zero_points, geometry, epilogue=()):
    """The calls of the library and of the composition of XLA's operations, each a function and its operands."""

    def call(form, x, w, zero_points, epilogue):
        return form(x, w, *zero_points, geometry, epilogue)

    return [(functools.partial(call, form), (x, w, zero_points, epilogue)) for form in (convolution, composed.convolution)]


def test_beside_the_composition():
    """Both have the same bits, in both orders of the channels."""
    rng = np.random.default_rng(4)
    calls = []
    for name, (sizes, filter_sizes, options) in GEOMETRIES.items():
        x, w = samples.integers(rng, np.int8, *sizes), samples.integers(rng, np.uint8, *filter_sizes)
        zero_points = samples.integers(rng, np.int8), samples.integers(rng, np.uint8, filter_sizes[0])
        space = "DHW"[2 - len(sizes) :]
        windows = {"padding": "VALID", "strides": None, "dilations": None, "groups": 1, **options}
        windows.pop("feature_level", None)
        for layout in ((f"NC{space}", f"OI{space}", f"NC{space}"), (f"N{space}C", f"{space}IO", f"N{space}C")):
            moved = reordered(x, f"NC{space}", layout[0]), reordered(w, f"OI{space}", layout[1])
            geometry = convolutions.geometry("test", *moved, **windows, dimension_numbers=layout)
            calls += of_both_forms(*moved, zero_points, geometry)
            function, operands = calls[-2]
            assert lowered(function, *operands).count(CALL) == (name not in DECLINED), name
    results = together(calls)
    assert_equal(results[::2], results[1::2])


def check_epilogue(epilogue, roles):
    """Compares an epilogue with the composition's, in both orders of the channels; `roles` are what the library applies."""
    operands = drawn(groups=2)
    for layout, roles_of_layout in zip(BOTH_ORDERS, roles, strict=True):
        x, w, *_ = arranged(operands, layout)
        dimensions = lax.conv_dimension_numbers(x.shape, w.shape, layout)
        calls = of_both_forms(x, w, (None, None), Geometry(dimensions, 2, WINDOWS), epilogue)
        function, arguments = calls[0]
        assert re.findall(r'roles = "(.*?)"', lowered(function, *arguments)) == [roles_of_layout]
        assert_equal(*together(calls))


def test_steps_that_the_library_does_not_know_follow():
    biases = np.arange(10, dtype=np.int32) * 1000, np.arange(10, dtype=np.int32) ** 4
    check_epilogue(tuple(map(AddBias, biases)), ["integer_bias"] * 2)


@pytest.mark.parametrize("dtype", DTYPES[3:], ids=str)
def test_scales_of_the_image_by_filter(dtype):
    """They change places with those of the filters, as their product is the same; not if both are by filter."""
    scales, one = np.linspace(0.01, 1, 10, dtype=np.float32), np.float32(0.3)
    check_epilogue((Dequantize(scales, one, None, dtype),), ["row_scale column_scale"] * 2)
    check_epilogue((Dequantize(scales, scales[::-1].copy(), None, dtype),), ["row_scale column_scale", ""])


def test_zero_points_of_the_result_by_filter():
    step = Requantize(np.float32(0.001), np.arange(10, dtype=np.int32), np.dtype(np.uint8))
    check_epilogue((step,), ["multiplier zero_point", ""])


@pytest.mark.parametrize("size", [1, 3])
def test_one_window_is_a_product(size):
    """Of the library, whose rows are the images; with padding, it is a convolution."""
    rng = np.random.default_rng(7)
    x, w = samples.integers(rng, np.uint8, 5, 7, size, size), samples.integers(rng, np.int8, 4, 7, size, size)

    def function(padding, x, w):
        return jquant.convolution_integer(x, w, 9, padding=padding)

    for padding, calls in (((0, 0), (0, 0)), (0, 1)), (((0, 0), (0, 1)), (1, 0)):
        call = functools.partial(function, padding)
        text = lowered(call, x, w)
        assert (text.count(CALL), text.count(PRODUCT)) == calls
        assert_equal(jax.jit(call)(x, w), reference.convolution_integer(x, w, 9, padding=padding))


def test_few_multiplications(monkeypatch):
    """They are left to XLA."""
    rng = np.random.default_rng(9)
    x, w = samples.integers(rng, np.uint8, 1, 4, 6, 6), samples.integers(rng, np.int8, 8, 4, 3, 3)
    multiplications = w.size * 16
    for fewest, calls in ((multiplications, 1), (multiplications + 1, 0)):
        jax.clear_caches()
        monkeypatch.setattr(native, "_FEWEST_MULTIPLICATIONS", fewest)
        assert lowered(jquant.convolution_integer, x, w).count(CALL) == calls


def test_four_spatial_dimensions():
    rng = np.random.default_rng(8)
    x, w = samples.integers(rng, np.int8, 1, 2, 3, 3, 3, 3), samples.integers(rng, np.int8, 2, 2, 2, 2, 2, 2)
    windows = Windows((2,) * 4, (1,) * 4, (1,) * 4, ((0, 0),) * 4)
    geometry = Geometry(lax.conv_dimension_numbers(x.shape, w.shape, None), 1, windows)
    (function, operands), _ = of_both_forms(x, w, (None, None), geometry)
    assert CALL not in lowered(function, *operands)
    assert_equal(jax.jit(function)(*operands), reference.convolution_integer(x, w))


@pytest.mark.parametrize("layout", [*BOTH_ORDERS, LAYOUTS[-1]], ids="-".join)
@pytest.mark.parametrize("axes", [(0, 1), (5, 2)], ids=str)
def test_mapped_images_are_more_images(layout, axes):
    """Mapped twice, over the dimensions `axes` of an array of images."""
    x, w, *zero_points = drawn(batch=(3, 2, 4))
    images = np.moveaxis(reordered(x, "abNCHW", f"ab{layout[0]}"), (0, 1), axes)
    _, *others = arranged((x[0, 0], w, *zero_points), layout)
    outer, inner = axes[0], axes[1] - (axes[1] > axes[0])
    function = functools.partial(convolve, layout=layout)
    for axis in (inner, outer):
        function = jax.vmap(function, (axis, None, None, None))
    assert_one_call(lowered(function, images, *others))
    expected = [[expected_of(batch, w, *zero_points, layout=layout) for batch in batches] for batches in x]
    assert_equal(jax.jit(function)(images, *others), np.array(expected))


@pytest.mark.parametrize("mapped", [(1,), (0, 1), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_mapped_filters_and_zero_points(mapped):
    """They have no place in a call of the library: the composition is mapped."""
    operands = [np.stack([x, x // 2, x ^ 5], -1) if p in mapped else x for p, x in enumerate(drawn())]
    function = jax.jit(jax.vmap(convolve, [x.ndim - 1 if p in mapped else None for p, x in enumerate(operands)]))
    one_by_one = [[x[..., index] if p in mapped else x for p, x in enumerate(operands)] for index in range(3)]
    assert_equal(function(*operands), np.stack([expected_of(*each) for each in one_by_one]))


@pytest.mark.parametrize("images_first", [False, True])
def test_images_and_filters_mapped_one_after_the_other(images_first):
    x, w, *zero_points = drawn(batch=(2, 1))
    filters = np.stack([w, w ^ 3, w // 2])
    axes = [(0, None, None, None), (None, 0, None, None)]
    function = convolve
    for each in axes if images_first else axes[::-1]:
        function = jax.vmap(function, each)
    expected = np.array([[expected_of(image, filter, *zero_points) for image in x] for filter in filters])
    assert_equal(jax.jit(function)(x, filters, *zero_points), expected if images_first else expected.swapaxes(0, 1))


def test_on_each_shard():
    operands = drawn(batch=(8,))
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    specs = P("x"), P(), P(), P()
    sharded = jax.shard_map(convolve, mesh=mesh, in_specs=specs, out_specs=P("x"))
    text = lowered(sharded, *operands)
    assert_one_call("".join(line for line in text.splitlines() if "@Sharding" not in line))
    assert re.search(rf"{CALL}.* -> tensor<2x10x", text)
    assert_equal(jax.jit(sharded)(*operands), expected_of(*operands))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("split", [0, 1], ids=["images", "filters"])
@pytest.mark.parametrize("devices", [1, 4])
def test_programs_that_xla_partitions_take_the_composition(devices, split, axis_type):
    """XLA could not split the call. Types with explicit axes are those of the composition, also for one device."""
    x, w, *_ = drawn(batch=(8,))
    operands = x, np.concatenate([w, w[:6]]), np.uint8(3), np.int8(-4)
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(axis_type,))
    specs = [P("x") if position == split else P() for position in range(4)]
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, specs, strict=True)]
        function = jax.jit(lambda *operands: convolve(*operands))
        is_called = CALL in function.lower(*placed).as_text()
        result = function(*placed)
    assert is_called == (devices == 1 and axis_type is AxisType.Auto)
    if axis_type is AxisType.Explicit:
        assert tuple(jax.typeof(result).sharding.spec) == tuple("x" if number == split else None for number in range(4))
    assert_equal(result, expected_of(*operands))


@pytest.mark.parametrize("layout", [*BOTH_ORDERS, LAYOUTS[-1]], ids="-".join)
def test_derivative_by_scales_and_bias(layout):
    """The powers of two leave nothing to round. Images may be mapped."""
    x, w, *zero_points = drawn(batch=(3, 2))
    images = reordered(x, "aNCHW", f"a{layout[0]}")
    _, filter, *_ = arranged((x[0], w, *zero_points), layout)
    bias = np.arange(10, dtype=np.float32)
    scales = np.float32(2) ** (bias % 3)
    tangents = np.float32(1), np.float32(2) ** (bias % 2), np.float32(4) ** (bias % 3)

    def function(x_scale, w_scale, bias, x):
        x_zero_point, w_zero_point = zero_points
        operands = x, x_scale, x_zero_point, filter, w_scale, w_zero_point, bias
        return jquant.convolution_integer_to_float(*operands, dimension_numbers=layout, **OPTIONS)

    @jax.jit
    def derivative(*tangents):
        def mapped(*parameters):
            return jax.vmap(functools.partial(function, *parameters))(images)

        return jax.jvp(mapped, (np.float32(0.5), scales, bias), tangents)

    text = derivative.lower(*tangents).as_text()
    assert text.count(CALL) == 1
    by_filter = (1, 1, 10, 1, 1)
    sums = np.array([expected_of(batch, w, *zero_points) for batch in x]).astype(np.float32)
    value = sums * (np.float32(0.5) * scales).reshape(by_filter) + bias.reshape(by_filter)
    of_x_scale, of_w_scale, of_bias = tangents
    tangent = sums * (of_x_scale * scales + np.float32(0.5) * of_w_scale).reshape(by_filter) + of_bias.reshape(by_filter)
    assert abs(value).max() < 2**23
    assert abs(tangent).max() < 2**23
    results = derivative(*tangents)
    assert_equal(results, tuple(reordered(each, "aNCHW", f"a{layout[2]}") for each in (value, tangent)))


def test_exported_programs_take_the_composition():
    """Another machine may run them; for images of symbolic sizes, too."""
    x, w, *zero_points = drawn()
    program = export.export(jax.jit(convolve))(x, w, *zero_points)
    assert "custom_call" not in program.mlir_module()
    assert_equal(program.call(x, w, *zero_points), expected_of(x, w, *zero_points))


def test_symbolic_sizes_are_declined():
    x, w, *zero_points = drawn()
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("n, 6, 9, 8"), x.dtype)
    geometry = Geometry(lax.conv_dimension_numbers(x.shape, w.shape, None), 1, WINDOWS)
    with pytest.raises(NotImplementedError, match="symbolic sizes"):
        jax.eval_shape(lambda x: native.convolution(x, w, *zero_points, geometry, ()), symbolic)
    (function, _), _ = of_both_forms(x, w, zero_points, geometry)
    program = export.export(jax.jit(lambda x: function(x, w, zero_points, ())))(symbolic)
    assert_equal(program.call(x[:1]), expected_of(x[:1], w, *zero_points))


def test_debugging_modes():
    operands = drawn()
    with jax.disable_jit():
        assert_equal(convolve(*operands), expected_of(*operands))
    with jax.debug_nans(True):
        assert_equal(convolve(*operands), expected_of(*operands))


def test_loops_and_remat():
    x, w, *zero_points = drawn()
    square = w[:6, :, :, :1]

    def step(wrap, x, _):
        y = wrap(lambda x: jquant.convolution_integer(x, square, *(zero_points[0], zero_points[1][:6]), padding="SAME"))(x)
        return (y & 255).astype(jnp.uint8), None

    expected = x
    for _ in range(3):
        y = reference.convolution_integer(expected, square, zero_points[0], zero_points[1][:6], padding=((1, 1), (0, 0)))
        expected = (y & 255).astype(np.uint8)
    for wrap in (lambda f: f, jax.checkpoint):
        loop = jax.jit(lambda x, wrap=wrap: lax.scan(functools.partial(step, wrap), x, None, length=3)[0])
        assert CALL in loop.lower(x).as_text()
        assert_equal(loop(x), expected)


@pytest.mark.usefixtures("xla_by_default")
def test_where_it_is_not_the_default():
    assert CALL not in lowered(convolve, *drawn())
