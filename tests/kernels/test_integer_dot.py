"""The primitive `integer_dot`: which implementation it lowers to on a platform, and how it batches the operands."""

import functools
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jquant
from jquant.kernels import batch, implementations, integer_dot, xla
from jquant.kernels.epilogue import Dequantize, ZeroPointCorrection
from jquant.kernels.pallas import gpu, tpu
from jquant.lowering import cpu_features
from jquant.modes import Implementation

A, B = jax.ShapeDtypeStruct((100, 300), jnp.uint8), jax.ShapeDtypeStruct((300, 70), jnp.int8)
ZERO_POINT = jax.ShapeDtypeStruct((), jnp.uint8)
KERNELS = [("mosaic_tpu", "tpu", "tpu_custom_call"), ("mosaic_gpu", "cuda", "mosaic_gpu_v2")]
every_kernel = pytest.mark.parametrize(("name", "platform", "call"), KERNELS)


def lowered(function, *arguments, platform):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def calls(text):
    return [line for line in text.splitlines() if "stablehlo.custom_call @" in line]


@every_kernel
@pytest.mark.parametrize("packed", [False, True])
def test_by_name(name, platform, call, packed):
    """Each operator becomes one call of the kernel, and no product of XLA."""
    weights = jax.eval_shape(jquant.pack_matrix, B) if packed else B
    operators = [
        lambda a, b, az: jquant.matmul_integer(a, b, az, implementation=name),
        lambda a, b, az: jquant.matmul_integer_to_float(a, 0.5, az, b, 0.25, None, implementation=name),
        lambda a, b, az: jquant.quantized_linear_matmul(a, 0.5, az, b, 0.25, None, 0.5, implementation=name),
    ]
    for operator in operators:
        text = lowered(operator, A, weights, ZERO_POINT, platform=platform)
        assert [call in line for line in calls(text)] == [True]
        assert "dot_general" not in text


@pytest.mark.usefixtures("xla_by_default")
@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_by_default(platform):
    """No kernel has been run on its chip: none is a default."""
    text = lowered(jquant.matmul_integer, A, B, ZERO_POINT, platform=platform)
    assert calls(text) == []
    assert "dot_general" in text


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_xla_replaces_a_default_kernel_that_declines(monkeypatch, platform):
    kernel = {"tpu": Implementation.MOSAIC_TPU, "cuda": Implementation.MOSAIC_GPU}[platform]
    monkeypatch.setitem(implementations.DEFAULTS, platform, kernel)
    assert len(calls(lowered(lambda a, b: jquant.matmul_integer(a, b), A, B, platform=platform))) == 1
    empty = jax.ShapeDtypeStruct((0, 300), jnp.uint8)
    text = lowered(lambda a, b: jquant.matmul_integer(a, b), empty, B, platform=platform)
    assert calls(text) == []
    assert "dot_general" in text


def test_a_program_for_three_platforms_has_the_default_of_each(monkeypatch):
    """Also if two of the defaults are kernels; on a CPU, the program runs."""
    monkeypatch.setitem(implementations.DEFAULTS, "tpu", Implementation.MOSAIC_TPU)
    monkeypatch.setitem(implementations.DEFAULTS, "cuda", Implementation.MOSAIC_GPU)

    def function(a, b):
        return jquant.matmul_integer(a, b, 7)

    program = export.export(jax.jit(function), platforms=("cpu", "tpu", "cuda"))(A, B)
    text = program.mlir_module()
    assert sorted(call for _, _, call in KERNELS if call in text) == sorted(call for _, _, call in KERNELS)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, A.shape, np.uint8), rng.integers(-128, 128, B.shape, np.int8)
    expected = (a.astype(np.int32) - 7) @ b.astype(np.int32)
    np.testing.assert_array_equal(export.deserialize(program.serialize()).call(a, b), expected)


@every_kernel
def test_vmap_is_one_call(name, platform, call):
    multiply = functools.partial(jquant.matmul_integer, implementation=name)
    a, b = jax.ShapeDtypeStruct((5, *A.shape), A.dtype), jax.ShapeDtypeStruct((5, *B.shape), B.dtype)
    for in_axes, weights in ((0, b), ((0, None), B)):
        text = lowered(jax.vmap(multiply, in_axes=in_axes), a, weights, platform=platform)
        assert [call in line for line in calls(text)] == [True]
        assert "stablehlo.while" not in text


@pytest.mark.gate
@pytest.mark.parametrize("kernel", [tpu, gpu])
def test_a_batch_of_a_alone_joins_its_rows(monkeypatch, kernel):
    """With one B for all, the kernel gets one matrix A, and the epilogue's arrays with their rows joined alike."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (2, 3, 5, 40), np.int8), rng.integers(-128, 128, (1, 1, 40, 9), np.int8)

    def integers(*shape):
        return rng.integers(-999, 999, shape, np.int32)

    correction = ZeroPointCorrection(
        ((integers(2, 3, 5, 1), integers(1, 1, 1, 9)), (integers(1, 1, 5, 1),), (integers(2, 3, 1, 1),))
    )
    matrix = rng.normal(size=(1, 1, 5, 9)).astype(np.float32)
    scales = np.float32(rng.uniform(size=(2, 1, 5, 1))), np.float32(rng.uniform(size=(1, 1, 1, 9)))
    epilogue = (correction, Dequantize(*scales, matrix, np.dtype(np.float32)))
    expected = xla.integer_dot(a, b, epilogue)
    leaves, structure = jax.tree.flatten(epilogue)
    joined_a, joined_b, joined = batch.join_rows(a, b, leaves, (2, 3))
    assert (joined_a.shape, joined_b.shape) == ((1, 30, 40), (1, 40, 9))
    actual = xla.integer_dot(joined_a, joined_b, jax.tree.unflatten(structure, joined))
    np.testing.assert_array_equal(actual.reshape(expected.shape), expected)

    calls, join_rows = [], batch.join_rows
    module = tpu if kernel is tpu else batch
    monkeypatch.setattr(module, "join_rows", lambda *operands: calls.append(join_rows(*operands)) or calls[-1])
    jax.jit(kernel.integer_dot).trace(a, b, epilogue).lower(lowering_platforms=("tpu" if kernel is tpu else "cuda",))
    assert calls[0][0].shape == (1, 30, 40)


def test_batches_with_different_columns_are_not_joined():
    a, b = np.ones((2, 5, 40), np.int8), np.ones((1, 40, 9), np.int8)
    assert batch.join_rows(a, b, [np.ones((2, 1, 9), np.int32)], (2,)) is None
    assert batch.join_rows(a, np.ones((2, 40, 9), np.int8), [], (2,)) is None


def test_rows_are_not_joined_where_only_the_epilogue_has_a_batch():
    a, b = np.ones((1, 5, 40), np.int8), np.ones((1, 40, 9), np.int8)
    assert batch.join_rows(a, b, [np.ones((2, 1, 1), np.int32)], (2,)) is None


@pytest.mark.parametrize("has_amx", [False, True])
@pytest.mark.parametrize("m", [1, 2, 16, 17])
def test_few_rows_by_packed_weights(monkeypatch, has_amx, m):
    """With AMX, weights are the left operand, which XLA does not transpose; the bits are the same."""
    monkeypatch.setattr(cpu_features, "has_amx_int8", lambda: has_amx)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (m, 96), np.int8), rng.integers(-128, 128, (80, 96), np.int8)
    epilogue = (ZeroPointCorrection(((rng.integers(-999, 999, (m, 1), np.int32),),)),)
    program = jax.jit(functools.partial(xla.integer_dot_on_cpu, transpose_b=True)).lower(a, b, epilogue).compile()
    np.testing.assert_array_equal(program(a, b, epilogue), xla.integer_dot(a, b, epilogue, transpose_b=True))
    (sizes,) = re.findall(r"s32\[([\d,]+)\]\S* dot\(", program.as_text())
    is_left = m <= 16 if has_amx else m == 1 and jax.__version_info__ < (0, 11)
    m = max(m, 2)  # a vector becomes a matrix
    assert sizes == (f"80,{m}" if is_left else f"{m},80")


def test_few_rows_in_a_batch_by_packed_weights(monkeypatch):
    monkeypatch.setattr(cpu_features, "has_amx_int8", lambda: True)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (3, 5, 1, 96), np.int8), rng.integers(-128, 128, (1, 1, 80, 96), np.int8)
    epilogue = (ZeroPointCorrection(((rng.integers(-999, 999, (3, 5, 1, 1), np.int32),),)),)
    program = jax.jit(functools.partial(xla.integer_dot_on_cpu, transpose_b=True)).lower(a, b, epilogue).compile()
    np.testing.assert_array_equal(program(a, b, epilogue), xla.integer_dot(a, b, epilogue, transpose_b=True))
    (sizes,) = re.findall(r"s32\[([\d,]+)\]\S* dot\(", program.as_text())
    assert sizes.removeprefix("1,1,") == "80,15"


@pytest.mark.usefixtures("xla_by_default")
def test_the_sign_flip_of_a_batch_is_computed_once():
    """The row sums read the same array as the product."""
    a, b = jax.ShapeDtypeStruct((3, 128, 64), jnp.uint8), jax.ShapeDtypeStruct((3, 64, 96), jnp.int8)
    zero_points = jax.ShapeDtypeStruct((), jnp.uint8), jax.ShapeDtypeStruct((), jnp.int8)
    program = jax.jit(jquant.matmul_integer).lower(a, b, *zero_points).compile()
    assert program.as_text().count(" xor(") == 1


@pytest.mark.usefixtures("xla_by_default")
def test_long_sums_are_split():
    """No partial sum can leave int32: some units saturate."""
    x = jax.ShapeDtypeStruct((2, 140_000), jnp.int8)
    program = jax.jit(functools.partial(integer_dot.integer_dot, transpose_b=True)).lower(x, x).as_text()
    sizes = re.findall(r"stablehlo.dot_general .*\(tensor<2x(\d+)xi8>", program)
    assert sizes == ["65536", "65536", "8928"]


@pytest.mark.gate
def test_without_pallas():
    """Where Pallas cannot be imported, jquant can be, and multiplies; a kernel says what it needs."""
    program = """
import sys
sys.modules["jax.experimental.pallas"] = None
import jax.numpy as jnp, jquant
a = jnp.ones((2, 2), jnp.uint8)
print(jquant.matmul_integer(a, a, 3).tolist())
from jquant.kernels import integer_dot
try:
    integer_dot.function_for("tpu", jquant.Implementation.MOSAIC_TPU)
except NotImplementedError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    product, error = result.stdout.splitlines()
    assert product == "[[-4, -4], [-4, -4]]"
    assert error.startswith("implementation mosaic_tpu needs a package that cannot be imported: ")
