"""Element-wise operators compile to one loop without tensor-sized temporaries."""

import jax
import jax.numpy as jnp
import pytest

import jquant
from jquant.cases import CASES, VARIANTS

ROWS = 2**18
LARGEST = 2**14  # bytes of temporaries that are allowed: a scale for all rows, ranges, tables of 256 integers
# Operators that reduce, or compute a value for many elements at once, have several loops.
NOT_ELEMENTWISE = (
    *("matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul", "quantized_gemm", "pack_matrix"),
    *("block_scaled_matmul", "dot_general", "matmul_n_bits"),
    "gather_block_quantized",  # which stores the gathered integers before it dequantizes them
    *("convolution_integer", "convolution_integer_to_float", "quantized_linear_convolution"),
    *("quantized_linear_average_pool", "quantized_linear_global_average_pool", "quantized_linear_softmax"),
    *("scale_and_zero_point", "requantization_range", "requantization_range_per_channel"),
    "quantize_down_and_shrink_range",
    "hadamard_transform",  # which stores the sums of every three stages
    *("mx_quantize", "nvfp4_quantize"),  # which store a scale for each block, and the cases' blocks are small
    *("mx_dequantize", "nvfp4_dequantize"),  # whose cases compute narrow floats, which are stored: see the test below
)
# The ranges of short rows are as large as the tensor: test_dynamic_quantize_linear.py checks long rows.
ELEMENTWISE = {
    name: case
    for name, case in (CASES | VARIANTS).items()
    if name.split(",")[0] not in NOT_ELEMENTWISE and not name.startswith("dynamic_quantize_linear, rows")
}


def names() -> list:
    """Every second case; all cases in the gate, and the variants in the full run."""
    sample = [name for name in ELEMENTWISE if name in CASES][::2]
    return [
        pytest.param(name, marks=() if name in sample else pytest.mark.gate if name in CASES else pytest.mark.full)
        for name in ELEMENTWISE
    ]


@pytest.mark.parametrize("name", names())
def test_nothing_of_the_size_of_the_tensor(name):
    case = ELEMENTWISE[name]
    memory = jax.jit(case.function).lower(*case.shapes(ROWS)).compile().memory_analysis()
    assert memory.output_size_in_bytes >= ROWS // 8  # bits of the smallest types are packed
    assert memory.temp_size_in_bytes <= LARGEST


@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "int8", "nvfp4"])
def test_narrow_floats_are_read_in_the_loop(element):
    """Narrow floats that are arguments of the program, as weights are, need no copy."""
    is_nvfp4 = element == "nvfp4"
    stored = {"float6_e2m3fn": "uint8", "nvfp4": "float4_e2m1fn"}.get(element, element)
    values = jax.ShapeDtypeStruct((ROWS // 64, 64), jnp.dtype(stored))
    scale = jax.ShapeDtypeStruct(
        (ROWS // 64, 4 if is_nvfp4 else 2), jnp.dtype("float8_e4m3fn" if is_nvfp4 else "float8_e8m0fnu")
    )
    if is_nvfp4:
        program = jax.jit(jquant.nvfp4_dequantize).lower(values, scale, jax.ShapeDtypeStruct((), jnp.float32))
    else:
        program = jax.jit(lambda *operands: jquant.mx_dequantize(*operands, element_type=element)).lower(values, scale)
    memory = program.compile().memory_analysis()
    assert memory.output_size_in_bytes == 4 * ROWS
    assert memory.temp_size_in_bytes <= LARGEST
