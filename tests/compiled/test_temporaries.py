"""Element-wise operators compile to one loop without tensor-sized temporaries."""

import jax
import jax.numpy as jnp
import pytest

import jquant
from jquant.cases import CASES, VARIANTS

ROWS = 2**18
LARGEST = 2**14  # bytes of temporaries that are allowed: a scale for all rows, ranges, tables of 256 integers
ELEMENTWISE = {name: case for name, case in (CASES | VARIANTS).items() if case.elementwise}


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
