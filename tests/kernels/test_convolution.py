"""The ways to convolve: all give the same, and each platform's program has the one that is meant for it."""

import re

import jax
import numpy as np
import pytest
from comparison import assert_equal
from geometries import GEOMETRIES, reordered

import jquant
from jquant import reference
from jquant.arguments import convolutions
from jquant.cases import samples
from jquant.kernels import convolution as kernel


@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
@pytest.mark.parametrize("name", ["3x2, all options", "one channel", "depthwise"])
def test_ways_agree(name, layout, monkeypatch):
    """Shifts, matrix products, and XLA's own convolution (which TPU programs have), whichever is the default here."""
    sizes, filter_sizes, options = GEOMETRIES[name]
    rng = np.random.default_rng(4)
    x, w = samples.integers(rng, np.uint8, *sizes), samples.integers(rng, np.uint8, *filter_sizes)
    zeros = samples.integers(rng, np.uint8), samples.integers(rng, np.uint8, filter_sizes[0])
    expected = reference.convolution_integer(x, w, *zeros, **options)
    x, w = reordered(x, "NCHW", layout[0]), reordered(w, "OIHW", layout[1])
    way = {name: options.get(name) for name in ("strides", "padding", "dilations")}
    geometry = convolutions.geometry(
        "test",
        x,
        w,
        **{**way, "padding": way["padding"] or "VALID"},
        groups=options.get("groups", 1),
        dimension_numbers=layout,
    )

    def output():
        return reordered(jax.jit(lambda x, w: kernel.convolution(x, w, *zeros, geometry))(x, w), layout[2], "NCHW")

    assert_equal(output(), expected)
    monkeypatch.setattr(kernel, "_FEW_FILTERS", 0)
    assert_equal(output(), expected)
    if geometry.groups == 1:
        monkeypatch.setattr(kernel, "_product_with_patches", kernel._convolution_of_xla)
        assert_equal(output(), expected)


def program(platform, sizes, filter_sizes, **options):
    """What is lowered for a platform."""
    shapes = jax.ShapeDtypeStruct(sizes, np.uint8), jax.ShapeDtypeStruct(filter_sizes, np.int8)
    function = jax.jit(lambda x, w: jquant.convolution_integer(x, w, 5, -3, **options))
    return function.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_what_multiplies(platform):
    """int8 by int8 to int32 everywhere: in a product of matrices, or for a TPU in a convolution of one group."""
    product, convolution = (
        rf"stablehlo.{operation}.*\(tensor<[\dx]+xi8>, tensor<[\dx]+xi8>\) -> tensor<[\dx]+xi32>"
        for operation in ("dot_general", "convolution")
    )
    cases = ((3, 3), 1), ((1, 1), 1), ((3, 3), 4)
    for window, groups in cases:
        text = program(platform, (2, 16, 8, 8), (32, 16 // groups, *window), groups=groups)
        by_convolution = platform == "tpu" and groups == 1
        assert len(re.findall(convolution, text)) == by_convolution
        # The sums of a product on a CPU are products, too.
        assert len(re.findall(product, text)) == (not by_convolution) + 2 * (platform == "cpu")
    text = program(platform, (2, 16, 8, 8), (32, 1, 3, 3), groups=16)
    assert not re.search("stablehlo.(dot_general|convolution)", text)
    assert text.count("stablehlo.multiply") == 9
