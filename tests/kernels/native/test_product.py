"""The integer product by jquant-native beside XLA's: the same bits in every program, and one call in each."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support.native import requires_native

import jquant
from jquant.kernels.native import epilogue as native_epilogue
from jquant.kernels.native import shared_library
from jquant.modes import Implementation

pytestmark = requires_native

NAMES = Implementation.NATIVE, Implementation.XLA
CALL = "custom_call @jquant_product"
BYTES = np.uint8, np.int8
# One row, few rows, tiles of several heights; K and N that fill no vector; more than one part.
SIZES = [(1, 64, 64), (1, 100, 37), (3, 65, 17), (8, 7, 33), (16, 130, 5), (17, 33, 300), (130, 70, 40), (250, 600, 70)]


def integers(rng, shape, dtype):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype)


def both(operator, *arguments, **options):
    """The results of jquant-native and of XLA."""
    return [np.asarray(operator(*arguments, implementation=name, **options)) for name in NAMES]


def zero_points(rng, dtype, count):
    return None, integers(rng, (), dtype), integers(rng, (count,), dtype)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("a_dtype", "b_dtype"), [*itertools.product(BYTES, BYTES)])
def test_every_sign_and_zero_point(gate, count, a_dtype, b_dtype, packed):
    rng = np.random.default_rng(0)
    for m, k, n in SIZES if gate else SIZES[3:4]:
        a, b = integers(rng, (m, k), a_dtype), integers(rng, (k, n), b_dtype)
        for az, bz in itertools.product(zero_points(rng, a_dtype, m), zero_points(rng, b_dtype, n)):
            weights = (jquant.pack_matrix(b, bz), az) if packed else (b, az, bz)
            expected = a.astype(np.int32) - np.reshape(np.int32(0 if az is None else az), (-1, 1))
            expected = expected @ (b.astype(np.int32) - np.int32(0 if bz is None else bz))
            actual = jquant.matmul_integer(a, *weights, implementation="native")
            np.testing.assert_array_equal(actual, expected)
            count("integers", expected.size)


@pytest.mark.parametrize("packed", [False, True])
def test_every_epilogue(gate, count, packed):
    rng = np.random.default_rng(1)
    for m, k, n in SIZES[1::3] if gate else SIZES[5:6]:
        a, b, bz = integers(rng, (m, k), np.uint8), integers(rng, (k, n), np.int8), integers(rng, (n,), np.int8)
        weights = (jquant.pack_matrix(b, bz), None) if packed else (b, bz)
        scales = np.float32(0.013), rng.uniform(0.001, 0.1, n).astype(np.float32)
        b, *bz = weights
        for scale, bias in itertools.product(scales, (None, rng.normal(size=n).astype(np.float32))):
            for dtype in (np.float32, np.float16, jnp.bfloat16):
                operands = a, dtype(0.1), np.uint8(7), b, scale.astype(dtype), *bz
                options = {"bias": None if bias is None else bias.astype(dtype), "feature_level": "EXTENDED"}
                actual, expected = both(jquant.matmul_integer_to_float, *operands, **options)
                assert actual.dtype == expected.dtype == dtype
                np.testing.assert_array_equal(actual, expected)
                count("floats", actual.size)
            for dtype in BYTES:
                operands = a, np.float32(0.1), np.uint8(7), b, scale, *bz, np.float32(0.7), dtype(3)
                actual, expected = both(jquant.quantized_linear_matmul, *operands, output_dtype=dtype)
                np.testing.assert_array_equal(actual, expected)
                count("integers", actual.size)


def operands(shape=(20, 48, 30), seed=2):
    rng = np.random.default_rng(seed)
    m, k, n = shape
    b = jquant.pack_matrix(integers(rng, (k, n), np.int8), integers(rng, (n,), np.int8))
    return jnp.asarray(integers(rng, (m, k), np.uint8)), b, jnp.uint8(7)


def multiply(name):
    return functools.partial(jquant.matmul_integer, implementation=name, feature_level="EXTENDED")


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("b_batch", ["none", "one", "all"])
def test_batches(batch, b_batch):
    rng = np.random.default_rng(3)
    a, b_sizes = integers(rng, (*batch, 5, 40), np.uint8), {"none": (), "one": (1,) * len(batch), "all": batch}[b_batch]
    b = integers(rng, (*b_sizes, 40, 9), np.int8)
    for weights in (b, jquant.pack_matrix(b, np.int8(-3))):
        results = both(jquant.matmul_integer, a, weights, np.uint8(9), feature_level="EXTENDED")
        np.testing.assert_array_equal(*results)
        moved = jnp.stack([a, a + 1], 1)
        mapped = [jax.vmap(multiply(name), in_axes=(1, None, None))(moved, weights, 9) for name in NAMES]
        np.testing.assert_array_equal(*mapped)


@pytest.mark.parametrize("axes", [(None, None, 0, 0), (None, None, None, 0), (0, None, None, 0), (0, None, 0, 0)])
def test_vmap_over_zero_points_of_b(axes):
    rng = np.random.default_rng(4)
    a, b = integers(rng, (6, 5, 40), np.uint8), integers(rng, (40, 9), np.int8)
    az, bz = integers(rng, (6,), np.uint8), integers(rng, (6,), np.int8)
    operands = [x if axis == 0 else x[0] for x, axis in zip((a, b[None], az, bz), axes, strict=True)]
    results = [jax.vmap(multiply(name), in_axes=axes)(*operands) for name in NAMES]
    np.testing.assert_array_equal(*results)


def test_vmap_over_what_follows_computes_the_product_once():
    a, b, az = operands()
    scales = jnp.linspace(0.1, 1.0, 4)

    def function(name, scale):
        return jquant.matmul_integer_to_float(a, scale, az, b, np.float32(1), None, implementation=name)

    native, xla = (jax.jit(jax.vmap(functools.partial(function, name))) for name in NAMES)
    np.testing.assert_array_equal(native(scales), xla(scales))
    assert "tensor<1x20x30xi32>" in native.lower(scales).as_text()


def test_scan_and_remat():
    a, b, az = operands((24, 24, 24))

    def step(name, x, _):
        return (multiply(name)(x, b, az) & 255).astype(jnp.uint8), None

    for wrap in (lambda f: f, jax.checkpoint):
        results = [lax.scan(wrap(functools.partial(step, name)), a, None, length=3)[0] for name in NAMES]
        np.testing.assert_array_equal(*results)


def test_derivative_by_the_scale():
    a, b, az = operands()

    def loss(name, scale):
        return jquant.matmul_integer_to_float(a, scale, az, b, np.float32(0.5), None, implementation=name).sum()

    np.testing.assert_array_equal(*(jax.grad(functools.partial(loss, name))(jnp.float32(0.25)) for name in NAMES))


def test_debugging_modes():
    a, b, az = operands()
    expected = multiply("xla")(a, b, az)
    with jax.disable_jit():
        np.testing.assert_array_equal(multiply("native")(a, b, az), expected)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(multiply("native")(a, b, az), expected)


def test_a_donated_output_is_written_in_place():
    a, b, az = operands((64, 32, 64))

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def function(output, a, b, az):
        del output
        return multiply("native")(a, b, az)

    output = jnp.zeros((64, 64), jnp.int32)
    pointer = output.unsafe_buffer_pointer()
    result = function(output, a, b, az)
    assert output.is_deleted()
    assert result.unsafe_buffer_pointer() == pointer
    np.testing.assert_array_equal(result, multiply("xla")(a, b, az))


def test_on_each_shard():
    a, b, az = operands((16, 48, 32))
    mesh = jax.make_mesh((4,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(
        multiply("native"),
        mesh=mesh,
        in_specs=(jax.P("m"), jax.tree.map(lambda _: jax.P(), b), jax.P()),
        out_specs=jax.P("m"),
    )
    np.testing.assert_array_equal(jax.jit(sharded)(a, b, az), multiply("xla")(a, b, az))
    assert CALL in jax.jit(sharded).lower(a, b, az).as_text()


def test_explicit_axes():
    a, b, az = operands((16, 48, 32))
    mesh = jax.make_mesh((4,), ("m",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(a, jax.NamedSharding(mesh, jax.P("m")))
        assert CALL in jax.jit(multiply("native")).lower(rows, b, az).as_text()
        actual = jax.jit(multiply("native"))(rows, b, az)
    np.testing.assert_array_equal(actual, multiply("xla")(a, b, az))


def test_programs_that_xla_partitions_take_its_product():
    a, b, az = operands((16, 48, 32))
    mesh = jax.make_mesh((4,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.device_put(a, jax.NamedSharding(mesh, jax.P("m")))
    by_default = jax.jit(jquant.matmul_integer)
    assert CALL not in by_default.lower(rows, b, az).as_text()
    np.testing.assert_array_equal(by_default(rows, b, az), multiply("xla")(a, b, az))


def test_exported_programs_take_xlas_product():
    a, b, az = operands()
    program = export.export(jax.jit(jquant.matmul_integer))(a, b, az)
    assert CALL not in program.mlir_module()
    np.testing.assert_array_equal(program.call(a, b, az), multiply("xla")(a, b, az))


def scaled(a, b, az, bz, scales):
    """The operators that scale a product: to floats with a bias, and to 8 bits."""
    a_scale, b_scale, output_scale, bias = scales
    options = {"output_dtype": jnp.uint8, "implementation": "native"}
    to_float = jquant.matmul_integer_to_float(a, a_scale, az, b, b_scale, bz, bias, implementation="native")
    return to_float, jquant.quantized_linear_matmul(a, a_scale, az, b, b_scale, bz, output_scale, az, **options)


def scales(rng, m, n):
    of_columns, of_rows = rng.uniform(0.1, 1, n).astype(np.float32), rng.uniform(9, 99, m).astype(np.float32)
    return np.float32(0.5), of_columns, of_rows if m > 1 else of_rows[0], np.ones((1, n), np.float32)


@pytest.mark.parametrize("are_constants", [False, True])
@pytest.mark.parametrize("b_dtype", [None, *BYTES])
def test_each_operator_is_one_call(are_constants, b_dtype):
    """XLA computes nothing beside it, and so runs the program in its caller's thread. Packed weights have a dtype here."""
    rng = np.random.default_rng(8)
    a, az = integers(rng, (5, 64), np.uint8), integers(rng, (), np.uint8)
    b, bz = integers(rng, (64, 40), b_dtype or np.int8), integers(rng, (40,), b_dtype or np.int8)
    if b_dtype is not None:
        b, bz = jquant.pack_matrix(b, bz), None
    operands = b, az, bz, scales(rng, 1, 40)
    operators = [lambda a, *rest: jquant.matmul_integer(a, rest[0], rest[1], rest[2], implementation="native")]
    operators += [lambda a, *rest, index=index: scaled(a, *rest)[index] for index in (0, 1)]
    for operator in operators:
        if are_constants:
            lowered = jax.jit(lambda a, operator=operator: operator(a, *operands)).lower(a)
        else:
            lowered = jax.jit(operator).lower(a, *operands)
        text = lowered.compile().as_text()
        assert text.count("custom_call_target=") == lowered.as_text().count(CALL) == 1
        assert "fusion(" not in text
        assert lowered.compile().cost_analysis().get("flops", 0) < 1000  # above that, XLA takes another thread


def test_a_multiplier_for_each_row_and_column():
    """XLA's, as M * N of them would take a call longer than the product."""
    rng = np.random.default_rng(9)
    a, b, az, bz = integers(rng, (5, 64), np.uint8), integers(rng, (64, 40), np.int8), np.uint8(3), np.int8(-7)
    program = jax.jit(lambda *operands: scaled(*operands)[1]).lower(a, b, az, bz, scales(rng, 5, 40))
    assert program.as_text().count(CALL) == 1
    assert "divide" in program.as_text()


def test_large_products_run_beside_their_caller(monkeypatch):
    """What their steps need first is XLA's: the program is more than a call, so that another thread runs it."""
    rng = np.random.default_rng(10)
    operands = integers(rng, (5, 64), np.uint8), integers(rng, (64, 40), np.int8), np.uint8(3), np.int8(-7)
    operands = *operands, scales(rng, 1, 40)
    small = jax.jit(scaled).lower(*operands).compile()
    monkeypatch.setattr(native_epilogue, "_FEWEST_TO_WAIT_FOR", 5 * 64 * 40)
    large = jax.jit(lambda *operands: scaled(*operands)).lower(*operands).compile()
    assert "fusion(" in large.as_text()
    for one, other in zip(small(*operands), large(*operands), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_library_of_an_earlier_version(monkeypatch):
    """It takes no scales; XLA computes the multipliers."""
    rng = np.random.default_rng(11)
    operands = integers(rng, (5, 64), np.uint8), integers(rng, (64, 40), np.int8), np.uint8(3), np.int8(-7)
    operands = *operands, scales(rng, 1, 40)
    expected = jax.jit(scaled)(*operands)
    monkeypatch.setattr(shared_library, "_load_once", functools.cache(shared_library._load_once.__wrapped__))
    monkeypatch.setitem(shared_library._VERSIONS, shared_library.PRODUCT, (1,))
    program = jax.jit(lambda *operands: scaled(*operands)).lower(*operands)
    assert program.as_text().count(f"{CALL}.1") == 2
    for one, other in zip(program.compile()(*operands), expected, strict=True):
        np.testing.assert_array_equal(one, other)
