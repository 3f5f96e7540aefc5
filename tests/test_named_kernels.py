"""Kernels by their names, in every public product: what each call lowers to without a chip, and its values, interpreted."""

import functools
import inspect
import itertools

import jax
import numpy as np
import pytest
from jax import export
from kernels.test_mosaic_gpu import kernel_in_xla
from support.covers import cover
from support.interpreted import interpreted

import jquant
from jquant.cases import CASES, VARIANTS
from jquant.kernels.pallas import gpu
from jquant.modes import Implementation
from jquant.reference import products as reference

KERNELS = {"tpu": "mosaic_tpu", "cuda": "mosaic_gpu"}
CALLS = {"mosaic_tpu": "tpu_custom_call", "mosaic_gpu": "mosaic_gpu_v2"}
INTERPRETED = {"mosaic_tpu": True, "mosaic_gpu": None}  # of the latter, XLA computes what the kernel does
SIGNS = [*itertools.product((np.int8, np.uint8), repeat=2)]


def operands(rng, rows, signs, zero_points):
    """A and B, and their zero points: none, a scalar each, or one for each row and each column."""
    a, b = (
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        for dtype, shape in zip(signs, ((rows, 70), (70, 9)), strict=True)
    )
    shapes = {"none": (None, None), "scalar": ((), ()), "a": ((), None), "b": (None, ()), "row": ((rows, 1), (1, 9))}
    points = (
        None if shape is None else rng.integers(*((0, 256) if dtype == np.uint8 else (-128, 128)), shape, dtype)
        for dtype, shape in zip(signs, shapes[zero_points], strict=True)
    )
    return a, b, *points


@pytest.mark.parametrize("name", INTERPRETED)
@pytest.mark.parametrize("rows", [8, *(pytest.param(rows, marks=pytest.mark.gate) for rows in (1, 33))])
def test_values(monkeypatch, name, rows):
    """Plain and packed, for all signs and zero points: the formula in NumPy."""
    monkeypatch.setattr(gpu, "_call", kernel_in_xla)
    rng = np.random.default_rng(rows)
    points = "none", "scalar", "a", "b", "row"
    drawn = [operands(rng, rows, signs, zero_points) for signs, zero_points in zip(SIGNS * 5, points * 4, strict=True)]

    def multiply(a, b, a_zero_point, b_zero_point):
        packed = jquant.pack_matrix(b, b_zero_point)
        plain = jquant.matmul_integer(a, b, a_zero_point, b_zero_point, implementation=name)
        return plain, jquant.matmul_integer(a, packed, a_zero_point, implementation=name)

    with interpreted(Implementation(name), INTERPRETED[name]):
        results = jax.jit(lambda drawn: [multiply(*one) for one in drawn])(drawn)
    for (a, b, *zero_points), both in zip(drawn, results, strict=True):
        expected = reference.matmul_integer(a, b, *(0 if point is None else point for point in zero_points))
        for result in both:
            np.testing.assert_array_equal(result, expected)


# ---------------------------------------------------------------------------------------------------------------------
# What calls lower to.

(SYMBOLIC,) = export.symbolic_shape("rows")
ROWS = 1, 8, 33, 256, 0, SYMBOLIC
SIZES = (96, 5), (128, 256), (1, 1), (700, 130)  # K and N
ZERO_POINTS = "none", "scalar", "row"
CONTEXTS = "plain", "mapped", "both mapped", "on each shard", "64 bits"
TARGETS = [*itertools.product(KERNELS, (*KERNELS.values(), "native", "xla", None))]
OWN_TARGETS = [*KERNELS.items()]


def array(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def call(product, is_packed, zero_points, signs, rows, sizes, name):
    """A call of a product, and the shapes of A, of B and of the other operands."""
    (k, n), (a_dtype, b_dtype) = sizes, signs
    is_floats, is_block = product == "floats", product == "block_scaled_matmul"
    a, b = array((rows, k), np.float32 if is_floats else a_dtype), array((k, n), b_dtype)
    row, column = ((rows, 1), (1, n)) if zero_points == "row" else ((), ())
    row, column = ((), (n,) if zero_points == "row" else ()) if product == "quantized_gemm" else (row, column)
    blocks = (-(-k // 32), n)
    b_scale = array(blocks if is_block else column)
    has_a_zero_point, has_b_zero_point = zero_points != "none" and not is_floats, zero_points != "none"
    a_zero_point = array(row, a_dtype) if has_a_zero_point else None
    b_zero_point = array(blocks if is_block else column, b_dtype) if has_b_zero_point else None
    if is_packed:
        options = {"block_size": 32} if is_block else {}
        packed_scale = {"scale": b_scale} if is_block else {}
        b = jax.eval_shape(functools.partial(jquant.pack_matrix, **options), b, b_zero_point, **packed_scale)
        b_zero_point, b_scale = None, None if is_block else b_scale

    def function(a, b, a_scale, a_zero_point, b_scale, b_zero_point):
        scaled, options = (a, a_scale, a_zero_point, b, b_scale, b_zero_point), {"implementation": name}
        match product:
            case "matmul_integer":
                return jquant.matmul_integer(a, b, a_zero_point, b_zero_point, **options)
            case "matmul_integer_to_float" | "floats":
                return jquant.matmul_integer_to_float(*scaled, feature_level="EXTENDED", **options)
            case "quantized_linear_matmul":
                return jquant.quantized_linear_matmul(*scaled, 0.5, np.uint8(3), **options)
            case "quantized_gemm":
                return jquant.quantized_gemm(*scaled, None, 0.5, np.uint8(3), **options)
            case "block_scaled_matmul":
                return jquant.block_scaled_matmul(*scaled, block_size=None if is_packed else 32, **options)

    return function, (a, b, array(row), a_zero_point, b_scale, b_zero_point)


INTEGER_PRODUCTS = (
    *("matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul", "quantized_gemm"),
    "block_scaled_matmul",
)
PRODUCTS = (*INTEGER_PRODUCTS, "floats")


def in_context(context, product, function, shapes):
    """The call inside of a transformation, and its shapes; those that a product does not take are plain."""
    a, b, *others = shapes
    if context == "on each shard":
        mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
        specs = jax.tree.map(lambda _: jax.P(), shapes)
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=jax.P()), shapes
    if context not in ("mapped", "both mapped"):
        return function, shapes

    def three(x):
        return array((3, *x.shape), x.dtype)

    axes = (0, 0 if context == "both mapped" else None, *[None] * len(others))
    b = jax.tree.map(three, b) if context == "both mapped" else b
    return jax.vmap(function, in_axes=axes), (three(a), b, *others)


def lowered(platform, function, shapes, context=""):
    with jax.enable_x64(context == "64 bits"):
        return jax.jit(function).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()


def check(target, product, is_packed, zero_points, signs, rows, sizes, context):
    """The program has one call of the kernel that is named, and no product of XLA; or it is refused with the reason."""
    platform, name = target
    function, shapes = call(product, is_packed, zero_points, signs, rows, sizes, name)
    function, shapes = in_context(context, product, function, shapes)
    refusal = refused(platform, name, rows)
    if refusal is not None:
        with pytest.raises(NotImplementedError, match=refusal):
            lowered(platform, function, shapes, context)
        return
    text = lowered(platform, function, shapes, context)
    calls = [line for line in text.splitlines() if "stablehlo.custom_call @" in line and "Sharding" not in line]
    kernels = [name for line in calls for name, kernel_call in CALLS.items() if kernel_call in line]
    assert kernels == ([name] if name in CALLS else []), calls
    assert ("dot_general" in text) == (name not in CALLS)


def refused(platform, name, rows):
    """Why the call cannot have the implementation, as the error says it; None if it can."""
    supported = {"mosaic_tpu": "tpu", "mosaic_gpu": "cuda", "native": "cpu"}.get(name, platform)
    if platform != supported:
        return f"^implementation {name} is for {supported}; this program is for {platform}$"
    if name in CALLS and rows is SYMBOLIC:
        return "kernel needs sizes that are known"
    if name in CALLS and rows == 0:
        return "kernel does not multiply empty matrices"
    return None


def test_names():
    """The products that take an implementation are those of this file."""
    functions = {name: x for name in jquant.__all__ if inspect.isfunction(x := getattr(jquant, name))}
    taking = {name for name, x in functions.items() if "implementation" in inspect.signature(x).parameters}
    assert taking == set(PRODUCTS) - {"floats"}


# Signs, sizes and contexts, which take turns where a sample is of the other factors.
TURNS = [*itertools.product(SIGNS, SIZES, CONTEXTS)]


def with_turns(cases):
    return [(*case, *TURNS[7 * number % len(TURNS)]) for number, case in enumerate(cases)]


def calls(gate, full):
    """(target, product, packed, zero points, rows, signs, sizes, context): all triples of the first five factors.

    The gate has the triples of all factors, the rows that a kernel refuses, and activations in floats; the full run has all
    of the first five factors, and each implementation on each platform. Elsewhere, the last three factors take turns.
    """
    if full:
        return with_turns(itertools.product(TARGETS, PRODUCTS, (False, True), ZERO_POINTS, ROWS))
    factors = OWN_TARGETS, PRODUCTS, (False, True), ZERO_POINTS
    if gate:
        return cover(*factors, ROWS, SIGNS, SIZES, CONTEXTS)
    return with_turns(cover(OWN_TARGETS, INTEGER_PRODUCTS, *factors[2:], ROWS[:4], strength=2))


@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product, gate, full, count):
    for target, called, is_packed, zero_points, rows, *turns in calls(gate, full):
        if called == product:
            signs, sizes, context = turns
            check(target, product, is_packed, zero_points, signs, rows, sizes, context)
            count("calls lowered, or refused with the reason", 1)


def test_long_sums():
    """A call of the kernel for each part of K."""
    for platform, name in OWN_TARGETS:
        function, shapes = call("matmul_integer", False, "scalar", SIGNS[2], 3, (140_000, 8), name)
        assert lowered(platform, function, shapes).count(f"custom_call @{CALLS[name]}") == 3


OPERATORS = CASES | VARIANTS


def test_operators(gate, full, count):
    """Every operator, with the kernel where it takes one; in the gate one case in three, a platform each."""
    platforms = [*KERNELS]
    chosen = itertools.product(OPERATORS, ROWS[:4], platforms)
    if not full:
        names = [*OPERATORS][:: 3 if gate else 9]
        chosen = [(name, ROWS[number % 4], platforms[number // 4 % 2]) for number, name in enumerate(names)]
    for name, rows, platform in chosen:
        case = OPERATORS[name]
        takes_one = "implementation" in inspect.signature(case.function).parameters
        function = functools.partial(case.function, implementation=KERNELS[platform]) if takes_one else case.function
        if takes_one and "minimum" in name:
            with pytest.raises(NotImplementedError, match="not with a minimum"):
                lowered(platform, function, case.shapes(rows))
            continue
        text = lowered(platform, function, case.shapes(rows))
        has_call = [kernel for kernel, kernel_call in CALLS.items() if f"custom_call @{kernel_call}" in text]
        assert has_call == ([KERNELS[platform]] if takes_one else []), (name, rows, platform)
        count("operators lowered", 1)
