"""Convolutions and pooling, exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant.errors import ModelError
from jquant.onnx.exporter import export

from .running import assert_exported, in_type, numbers, sample

X = numbers("float32", 2, 4, 7, 8)
KERNEL = numbers("float32", 6, 4, 3, 2)
GROUPED = numbers("float32", 6, 2, 3, 2)
CASES = {
    "plain": {},
    "same": {"padding": "SAME"},
    "strides": {"window_strides": (2, 3), "padding": "SAME"},
    "dilated": {"rhs_dilation": (2, 1)},
    "not symmetric": {"padding": ((0, 2), (3, 1))},
    "negative": {"padding": ((-1, 2), (1, -2))},
    "transposed": {"lhs_dilation": (2, 3)},
    "transposed and padded": {"lhs_dilation": (2, 3), "padding": ((1, 2), (0, 1))},
    "transposed with more padding": {"lhs_dilation": (2, 3), "padding": ((4, 5), (3, 4))},
    "transposed with less": {"lhs_dilation": (2, 2), "padding": ((-1, 1), (1, -1))},
    "transposed in strides": {"lhs_dilation": (2, 1), "window_strides": (1, 2)},
    "transposed and dilated": {"lhs_dilation": (2, 2), "rhs_dilation": (2, 2), "padding": ((1, 3), (2, 2))},
}


def convolution(x, kernel, **options):
    given = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), **options}
    return lax.conv_general_dilated(x, kernel, **given)


@pytest.mark.parametrize(
    "name", sample(CASES, "not symmetric", "negative", "transposed and padded", "transposed with more padding")
)
def test_convolutions(name):
    options = CASES[name]

    def function(x, kernel, grouped):
        return {
            "plain": convolution(x, kernel, **options),
            "grouped": convolution(x, grouped, feature_group_count=2, **options),
            "known": convolution(x, jnp.asarray(GROUPED), feature_group_count=2, **options),
        }

    assert_exported(function, X, KERNEL, GROUPED, tolerance=1e-5)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"padding": "SAME", "window_strides": (2, 2)}, ["Conv"]),
        ({"lhs_dilation": (2, 2), "padding": ((1, 2), (1, 1))}, ["ConvTranspose"]),
        ({"padding": ((-1, 0), (0, 0))}, ["Pad", "Conv"]),
        ({"dimension_numbers": ("NHWC", "HWIO", "NHWC")}, ["Transpose", "Conv", "Transpose"]),
        ({"dimension_numbers": ("HCNW", "OIHW", "CHNW")}, ["Transpose", "Conv", "Transpose"]),
    ],
)
def test_nodes(options, nodes):
    """Kernels that are known are transposed beforehand."""
    dimensions = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, options.get("dimension_numbers", ("NCHW", "OIHW", "NCHW")))
    x, kernel = (
        array.transpose(np.argsort(spec)) for array, spec in ((X, dimensions.lhs_spec), (KERNEL, dimensions.rhs_spec))
    )
    kernel = jnp.asarray(kernel)
    assert assert_exported(lambda x: convolution(x, kernel, **options), x, tolerance=1e-5) == nodes


@pytest.mark.parametrize("dimensions", [1, 3])
def test_dimensions_of_space(dimensions):
    x, kernel = numbers("float32", 2, 4, *(5,) * dimensions), numbers("float32", 6, 4, *(2,) * dimensions)
    assert_exported(lambda x, kernel: lax.conv(x, kernel, (2,) * dimensions, "SAME"), x, kernel, tolerance=1e-5)


@pytest.mark.parametrize(
    ("dtype", "preferred"), sample([("int8", None), ("int8", "int32"), ("uint8", None)], ("int8", "int32"))
)
def test_convolutions_of_bytes(dtype, preferred):
    x, kernel = numbers(dtype, 2, 4, 7, 8), numbers(dtype, 6, 4, 3, 2, seed=1)

    def function(x, kernel):
        return {name: convolution(x, kernel, preferred_element_type=preferred, **options) for name, options in CASES.items()}

    nodes = assert_exported(function, x, kernel)
    assert nodes.count("ConvInteger") == len(CASES)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
def test_convolutions_of_no_channels_are_zero(dtype):
    """For which onnxruntime's ConvInteger would return what was in memory."""
    result = jnp.float32 if dtype == "float32" else jnp.int32

    def function(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", preferred_element_type=result)

    nodes = assert_exported(function, np.zeros((1, 0, 4, 4), dtype), np.zeros((2, 0, 3, 3), dtype))
    assert not {"Conv", "ConvInteger"} & set(nodes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_convolutions_of_narrow_floats(dtype):
    assert_exported(in_type(dtype)(convolution), X, KERNEL, tolerance=5e-2)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: convolution(x, jnp.ones((6, 4, 3, 2)), batch_group_count=2), "groups of the batch are not written"),
        (lambda x: convolution(x.astype(jnp.int32), jnp.ones((6, 4, 3, 2), jnp.int32)), "of int32 and int32 in int32"),
        (
            lambda x: lax.conv_general_dilated(x[..., 0, 0], jnp.ones((6, 4)), (), ()),
            "a convolution without dimensions of space is not written",
        ),
    ],
)
def test_refusals(function, message):
    with pytest.raises(ModelError, match=message):
        export(function, X)


IMAGE = numbers("float32", 2, 8, 9, 3)


def window(function, start, size, stride=(1, 1, 1, 1), padding="VALID", base=None, dilation=None):
    return lambda x: lax.reduce_window(x, jnp.asarray(start, x.dtype), function, size, stride, padding, base, dilation)


POOLS = {
    "max": window(lax.max, -np.inf, (1, 2, 2, 1), (1, 2, 2, 1)),
    "max, padded": window(lax.max, -np.inf, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "max, channels first": window(lax.max, -np.inf, (1, 1, 3, 3), (1, 1, 2, 1), ((0, 0), (0, 0), (1, 1), (0, 2))),
    "max, dilated": window(lax.max, -np.inf, (1, 1, 2, 3), dilation=(1, 1, 2, 1)),
    "max of channels": window(lax.max, -np.inf, (1, 1, 1, 2)),
    "max of everything": window(lax.max, -np.inf, (2, 2, 2, 2)),
    "max, padded by windows": window(lax.max, -np.inf, (1, 2, 2, 1), padding=((0, 0), (3, 0), (0, 2), (0, 0))),
    "min": window(lax.min, np.inf, (1, 2, 3, 1), (1, 1, 2, 1), "SAME"),
    "sum": window(lax.add, 0.0, (1, 2, 2, 1), (1, 2, 2, 1)),
    "sum, padded": window(lax.add, 0.0, (1, 3, 2, 1), (1, 2, 1, 1), "SAME"),
    "sum, dilated": window(lax.add, 0.0, (1, 2, 3, 1), (1, 1, 2, 1), "SAME", dilation=(1, 2, 2, 1)),
    "sum, apart": window(lax.add, 0.0, (1, 2, 3, 1), (1, 1, 2, 1), "SAME", base=(1, 2, 3, 1)),
    "sum, with less": window(lax.add, 0.0, (1, 2, 2, 1), padding=((0, 0), (-1, 0), (0, -2), (0, 0))),
    "product": window(lax.mul, 1.0, (1, 2, 3, 1), (1, 2, 1, 1), "SAME"),
    "strides alone": window(lax.add, 0.0, (1, 1, 1, 1), (1, 2, 2, 1)),
}


def test_pooling():
    assert_exported(lambda x: {name: pool(x) for name, pool in POOLS.items()}, IMAGE, tolerance=1e-6)


@pytest.mark.parametrize("dtype", sample(("float16", "bfloat16"), "bfloat16"))
def test_pooling_of_narrow_floats(dtype):
    assert_exported(in_type(dtype)(POOLS["max, padded"]), IMAGE)
    assert_exported(in_type(dtype)(POOLS["sum"]), IMAGE, tolerance=1e-2)


@pytest.mark.parametrize("dtype", sample(("int8", "uint8", "int16", "int32", "uint32", "bool"), "int8", "int16", "bool"))
def test_pooling_of_integers(dtype):
    x = numbers(dtype, 2, 8, 9, 3)
    is_bool = dtype == "bool"
    low = False if is_bool else np.iinfo(dtype).min
    pools = {"max": window(lax.bitwise_or if is_bool else lax.max, low, (1, 3, 2, 1), (1, 2, 1, 1), "SAME")}
    if not is_bool:
        pools["sum"] = window(lax.add, 0, (1, 3, 2, 1), (1, 2, 1, 1), "SAME")
    nodes = assert_exported(lambda x: {name: pool(x) for name, pool in pools.items()}, x)
    assert ("MaxPool" in nodes) == (dtype in ("int8", "uint8"))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("conv", "transposed", "batch norm", "average of what there is"), marks=pytest.mark.gate),
        pytest.param(
            (
                *("circular", "depthwise", "dilated", "transposed, no padding", "transposed, smaller than strides"),
                *("group norm", "max", "average"),
            ),
            marks=pytest.mark.full,
        ),
    ],
)
def test_layers_of_flax(names):
    linen = pytest.importorskip("flax.linen", reason="flax is not installed (extra: recipes)")
    layers = {
        "conv": linen.Conv(5, (3, 3), strides=2),
        "circular": linen.Conv(5, (3, 3), padding="CIRCULAR"),
        "depthwise": linen.Conv(6, (3, 3), feature_group_count=3),
        "dilated": linen.Conv(5, (3, 3), kernel_dilation=2),
        "transposed": linen.ConvTranspose(5, (3, 3), strides=(2, 2)),
        "transposed, no padding": linen.ConvTranspose(5, (4, 4), strides=(3, 3), padding="VALID"),
        "transposed, smaller than strides": linen.ConvTranspose(5, (2, 2), strides=(3, 3)),
        "batch norm": linen.BatchNorm(use_running_average=True),
        "group norm": linen.GroupNorm(3),
    }
    bound = {name: layer.bind(layer.init(jax.random.key(0), IMAGE)) for name, layer in layers.items() if name in names}
    pools = {
        "max": lambda x: linen.max_pool(x, (2, 2), (2, 2)),
        "average": lambda x: linen.avg_pool(x, (3, 2), (2, 1), "SAME"),
        "average of what there is": lambda x: linen.avg_pool(x, (3, 3), (1, 1), "SAME", count_include_pad=False),
    }
    functions = bound | {name: pool for name, pool in pools.items() if name in names}
    with jax.numpy_dtype_promotion("standard"):
        assert_exported(lambda x: {name: function(x) for name, function in functions.items()}, IMAGE, tolerance=2e-5)
