"""Convolutions without jquant-native: all forms give the same integers, and each platform's program has the right one."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.comparison import assert_equal
from support.geometries import GEOMETRIES, reordered

import jquant
from benchmarks.shapes import CONVOLUTIONS, named
from jquant.arguments import convolutions
from jquant.cases import samples
from jquant.kernels.convolution import composed, dispatch, im2col, xla
from jquant.kernels.epilogue import AddBias, Dequantize, Requantize
from jquant.lowering import cpu_features
from jquant.reference import convolutions as reference


@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
@pytest.mark.parametrize("name", ["3x2, all options", "one channel", "depthwise"])
def test_implementations_agree(name, layout, monkeypatch):
    """Shifted multiplications, matrix products, and XLA's own convolution, which TPU programs have."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    rng = np.random.default_rng(4)
    x, w = samples.integers(rng, np.uint8, *sizes), samples.integers(rng, np.uint8, *filter_sizes)
    zeros = samples.integers(rng, np.uint8), samples.integers(rng, np.uint8, filter_sizes[0])
    expected = reference.convolution_integer(x, w, *zeros, **options)
    x, w = reordered(x, "NCHW", layout[0]), reordered(w, "OIHW", layout[1])
    geometry = convolutions.geometry(
        "test",
        x,
        w,
        strides=options.get("strides"),
        padding=options.get("padding") or "VALID",
        dilations=options.get("dilations"),
        groups=options.get("groups", 1),
        dimension_numbers=layout,
    )

    def output():
        return reordered(jax.jit(lambda x, w: composed.convolution(x, w, *zeros, geometry))(x, w), layout[2], "NCHW")

    assert_equal(output(), expected)
    monkeypatch.setattr(composed, "_FEW_FILTERS", 0)
    assert_equal(output(), expected)
    if geometry.groups == 1:
        monkeypatch.setattr(im2col, "product", xla.convolution)
        assert_equal(output(), expected)


EPILOGUES = {
    "none": (),
    "int32": (AddBias(np.ones(4, np.int32)),),
    "bfloat16": (Dequantize(np.float32(2), np.ones(4, np.float32), None, jnp.dtype(jnp.bfloat16)),),
    "uint8": (AddBias(np.ones(4, np.int32)), Requantize(np.float32(2), None, np.dtype(np.uint8))),
}


@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NHWC"), ("CHWN", "IHWO", "HWNC")], ids="-".join)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_one_operation_until_a_program_is_lowered(epilogue, layout):
    """Its result has the type of what takes its place, also if images are mapped."""
    sizes, filter_sizes, options = GEOMETRIES["3x2, all options"]
    x, w = (
        reordered(np.zeros(sizes, np.int8), "NCHW", layout[0]),
        reordered(np.zeros(filter_sizes, np.int8), "OIHW", layout[1]),
    )
    geometry = convolutions.geometry("test", x, w, **options, groups=1, dimension_numbers=layout)
    images = np.stack([x] * 5, 2)

    def types_and_operations(convolution):
        def function(x):
            return convolution(x, w, np.int8(3), None, geometry, EPILOGUES[epilogue])

        program, mapped = jax.make_jaxpr(function)(x), jax.make_jaxpr(jax.vmap(function, 2))(images)
        return (program.out_avals, mapped.out_avals), [equation.primitive.name for equation in program.eqns]

    types, operations = types_and_operations(dispatch.convolution)
    expected, many = types_and_operations(composed.convolution)
    assert types == expected
    assert operations == ["integer_convolution"]
    assert len(many) > 1


def test_types_are_known_without_composing(monkeypatch):
    """Otherwise each convolution would be traced for its type alone, and again when the program is lowered."""
    monkeypatch.delattr(composed, "convolution")
    x, w = jax.ShapeDtypeStruct((5, 2, 6, 9, 9), np.uint8), jax.ShapeDtypeStruct((4, 6, 3, 3), np.int8)

    def types():
        return jax.eval_shape(jax.vmap(lambda x, w: jquant.convolution_integer(x, w, 3), (0, None)), x, w)

    expected = jax.ShapeDtypeStruct((5, 2, 4, 7, 7), np.int32)
    assert types() == expected
    with jax.set_mesh(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))):
        assert types() == expected


def program(platform, sizes, filter_sizes, **options):
    """The text of `convolution_integer`, lowered for a platform."""
    shapes = jax.ShapeDtypeStruct(sizes, np.uint8), jax.ShapeDtypeStruct(filter_sizes, np.int8)
    function = jax.jit(lambda x, w: jquant.convolution_integer(x, w, 5, -3, **options))
    return function.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_int8_is_multiplied(platform):
    """int8 by int8 to int32: in a convolution for one group on a TPU, or if it is wide on a CPU; else in a matrix product.

    A wide convolution has many channels, and many windows per filter.
    """
    product, convolution = (
        rf"stablehlo.{operation}.*\(tensor<[\dx]+xi8>, tensor<[\dx]+xi8>\) -> tensor<[\dx]+xi32>"
        for operation in ("dot_general", "convolution")
    )
    cases = (16, (3, 3), 1), (8, (3, 3), 1), (16, (1, 1), 1), (16, (3, 3), 4)
    for size, window, groups in cases:
        text = program(platform, (2, 16, size, size), (32, 16 // groups, *window), groups=groups)
        is_wide = platform == "cpu" and cpu_features.HAS_INT8_CONVOLUTION and size == 16 and window != (1, 1)
        by_convolution = groups == 1 and (platform == "tpu" or is_wide)
        assert len(re.findall(convolution, text)) == by_convolution
        # On a CPU, the sums for the zero points are products, too.
        assert len(re.findall(product, text)) == (not by_convolution) + 2 * (platform == "cpu")
    text = program(platform, (2, 16, 8, 8), (32, 1, 3, 3), groups=16)
    assert not re.search("stablehlo.(dot_general|convolution)", text)
    assert text.count("stablehlo.multiply") == 9


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
def test_many_filters_are_not_copied(layout):
    """Filters that are much larger than the image are not copied to bring them into another order."""
    x, w = (
        reordered(np.zeros(sizes, np.int8), *orders)
        for sizes, orders in (((1, 256, 7, 7), ("NCHW", layout[0])), ((256, 256, 3, 3), ("OIHW", layout[1])))
    )
    convolution = jax.jit(lambda x, w: jquant.convolution_integer(x, w, 3, padding="SAME", dimension_numbers=layout))
    assert convolution.lower(x, w).compile().memory_analysis().temp_size_in_bytes < w.size / 2


# The sizes of input and filter, the strides and the dilations, for windows of more than a few slices.
LONG_WINDOWS = {
    "blocks": ((2, 3, 17, 22), (4, 3, 4, 5), (4, 5), (1, 1)),
    "parts of blocks": ((1, 2, 60), (3, 2, 25), (2,), (1,)),
    "parts of parts": ((1, 2, 90), (10, 1, 75), (1,), (1,)),
    "with dilations": ((1, 2, 50, 5), (3, 2, 17, 2), (1, 3), (2, 1)),
    "with dilations and strides": ((2, 1, 30, 60), (5, 1, 9, 19), (2, 3), (1, 3)),
    "depthwise": ((2, 3, 12, 14), (3, 1, 9, 8), (1, 2), (1, 1)),
    "depthwise, of two filters a channel": ((1, 2, 200), (4, 1, 67), (3,), (2,)),
    "many channels": ((2, 17, 9, 8), (3, 17, 3, 2), (2, 1), (1, 2)),
    "many filters and channels": ((1, 20, 30), (18, 20, 11), (2,), (1,)),
}


@pytest.mark.gate
@pytest.mark.usefixtures("xla_by_default")
def test_long_windows():
    """All geometries, with the channels second and last, in one program."""
    rng = np.random.default_rng(5)
    calls, options, expected = [], [], []
    for sizes, filter_sizes, strides, dilations in LONG_WINDOWS.values():
        x, w = samples.integers(rng, np.uint8, *sizes), samples.integers(rng, np.uint8, *filter_sizes)
        zeros = samples.integers(rng, np.uint8), samples.integers(rng, np.uint8, filter_sizes[0])
        windows = {"strides": strides, "dilations": dilations, "padding": ((1, 0),) * len(strides)}
        windows["groups"] = sizes[1] // filter_sizes[1]
        calls.append((x, w, *zeros))
        options.append(windows)
        expected.append(reference.convolution_integer(*calls[-1], **windows))

    @jax.jit
    def program(calls):
        outputs = []
        for (x, w, *zeros), windows in zip(calls, options, strict=True):
            space = "HW"[: x.ndim - 2]
            last = (f"N{space}C", f"{space}IO", f"N{space}C")
            moved = jnp.moveaxis(x, 1, -1), jnp.moveaxis(w, (0, 1), (-1, -2))
            output = jquant.convolution_integer(*moved, *zeros, dimension_numbers=last, **windows)
            outputs.append((jquant.convolution_integer(x, w, *zeros, **windows), jnp.moveaxis(output, -1, 1)))
        return outputs

    for name, outputs, reference_output in zip(LONG_WINDOWS, program(calls), expected, strict=True):
        for output in outputs:
            assert_equal(output, reference_output, name)


def of_layer(name: str) -> tuple:
    """The sizes of one image and the filters, and the strides."""
    layer = named(CONVOLUTIONS, name)
    return (1, *layer.image_shape), layer.filter_shape, (layer.stride,) * 2


# The sizes of input and filter, the strides, and the most lines that the program may have. A slice for each element of a
# window would take hundreds, or thousands.
LARGE_FILTERS = {
    "patches of a vision transformer": (*of_layer("ViT-B/16, patches"), 200),
    "frames of a sound": ((1, 1, 16000), (80, 1, 400), (160,), 200),
    "7 x 7 x 7": ((1, 3, 16, 40, 40), (32, 3, 7, 7, 7), (1, 1, 1), 200),
    "4096": ((1, 1, 8192), (64, 1, 4096), (1,), 200),
    "11 x 11": ((1, 64, 28, 28), (64, 64, 11, 11), (1, 1), 200),
    "ResNet's first": (*of_layer("ResNet-50, first layer, 7 x 7, stride 2"), 200),
    "4096, of one filter": ((1, 1, 8192), (1, 1, 4096), (1,), 1200),
    "depthwise 31 x 31": ((1, 64, 56, 56), (64, 1, 31, 31), (1, 1), 1200),
}


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("name", LARGE_FILTERS)
def test_programs_are_small(name):
    sizes, filter_sizes, strides, most = LARGE_FILTERS[name]
    groups = sizes[1] // filter_sizes[1]
    for platform in ("cpu", "cuda", "tpu"):
        text = program(platform, sizes, filter_sizes, strides=strides, groups=groups, feature_level="EXTENDED")
        assert text.count("\n") < most


WIDE = (8, 17, 6, 6), (8, 17, 3, 3)


def wide_operands(*batch):
    rng = np.random.default_rng(6)
    x, w = samples.integers(rng, np.uint8, *batch, *WIDE[0]), samples.integers(rng, np.int8, *batch, *WIDE[1])
    return x, w, np.uint8(7), np.int8(-3)


@pytest.mark.usefixtures("xla_by_default")
def test_wide_convolutions_are_mapped():
    """Over images, filters and both: for mapped filters, XLA would make a convolution of several groups, which is slow."""
    x, w, *zeros = wide_operands(2)
    for axes in ((0, None), (None, 0), (0, 0)):
        operands = [operand if axis == 0 else operand[0] for operand, axis in zip((x, w), axes, strict=True)]
        function = jax.jit(jax.vmap(lambda x, w: jquant.convolution_integer(x, w, *zeros), axes))
        lowered, mapped = function.lower(*operands).as_text(), function(*operands)
        assert ("stablehlo.convolution" in lowered) == (cpu_features.HAS_INT8_CONVOLUTION and axes[1] is None)
        for index in range(2):
            pairs = zip(operands, axes, strict=True)
            image, filter = (operand if axis is None else operand[index] for operand, axis in pairs)
            assert_equal(mapped[index], reference.convolution_integer(image, filter, *zeros))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("specs", [(P("x"), P()), (P(), P("x"))], ids=["images", "filters"])
def test_wide_convolutions_on_a_mesh(specs, axis_type):
    x, w, *zeros = wide_operands()
    mesh = jax.make_mesh((8,), ("x",), axis_types=(axis_type,))
    operands = [jax.device_put(operand, NamedSharding(mesh, spec)) for operand, spec in zip((x, w), specs, strict=True)]
    with jax.set_mesh(mesh):
        output = jax.jit(lambda x, w: jquant.convolution_integer(x, w, *zeros))(*operands)
    assert_equal(output, reference.convolution_integer(x, w, *zeros))


@pytest.mark.parametrize("groups", [1, 4])
def test_a_filter_on_no_mesh(groups):
    """A NumPy array as the filter of images that explicit axes split."""
    rng = np.random.default_rng(7)
    x, w = (rng.integers(-128, 128, shape, np.int8) for shape in ((8, 4, 6, 6), (8, 4 // groups, 3, 3)))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    output = jquant.convolution_integer(jax.device_put(x, NamedSharding(mesh, P("x"))), w, groups=groups)
    assert jax.typeof(output).sharding.spec == P("x", None, None, None)
    assert_equal(output, reference.convolution_integer(x, w, groups=groups))


def test_wide_convolutions_are_exported():
    x, w, *zeros = wide_operands()
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 17, 6, 6"), np.uint8)
    call = export.export(jax.jit(lambda x: jquant.convolution_integer(x, w, *zeros)))(shape).call
    for count in (1, 8):
        assert_equal(call(x[:count]), reference.convolution_integer(x[:count], w, *zeros))


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 2, 0, 3)], ids=str)
@pytest.mark.parametrize(
    "layout",
    [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NHWC", "OHWI", "NCHW"), ("NHWC", "IHWO", "NHWC")],
    ids="-".join,
)
def test_xla_has_fast_code_for_wide_convolutions(layout, order):
    """In every order of the dimensions, even if the caller transposes: XLA's generic loop is far slower.

    On processors where XLA has only that loop, no convolution may be left.
    """
    x, w, *zeros = wide_operands()
    x, w = reordered(x, "NCHW", layout[0]), reordered(w, "OIHW", layout[1])

    def function(x, w):
        return jquant.convolution_integer(jnp.transpose(x), jnp.transpose(w, order), *zeros, dimension_numbers=layout)

    text = jax.jit(function).lower(x.transpose(), w.transpose(np.argsort(order))).compile().as_text()
    assert bool(re.search(r"= s32\[8,4,4,8\]\S* fusion\(.*kind=kCustom", text)) == cpu_features.HAS_INT8_CONVOLUTION
    assert cpu_features.HAS_INT8_CONVOLUTION or " convolution(" not in text
