"""A float32 product in PTX assembly, whose rounding no compiler may merge with a sum."""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm


def rounded_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a * b)`` of float32 matrices in the layout of `wgmma`, by `mul.rn`, which PTX defines never to be merged."""
    layout = plgpu.Layout.WGMMA

    def multiply(_, a, b):
        return a._pointwise(_multiply_registers, b)

    result = plgpu.ShapeDtypeStruct(a.shape, a.dtype, layout=layout)
    inlined: Any = plgpu.inline_mgpu(arg_types=(layout, layout), return_type=result)(multiply)
    return inlined(a, b)


def _multiply_registers(a: Any, b: Any) -> Any:
    """The products of two vectors of registers."""
    (width,) = ir.VectorType(a.type).shape
    f32 = ir.F32Type.get()
    result = a
    for place in range(width):
        position = arith.constant(ir.IntegerType.get_signless(32), place)
        factors = [llvm.extractelement(x, position) for x in (a, b)]
        product: Any = llvm.inline_asm(f32, factors, "mul.rn.f32 $0, $1, $2;", "=f,f,f")
        result = llvm.insertelement(result, product, position)
    return result
