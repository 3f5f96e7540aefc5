"""Where Pallas' interface changed between jax 0.10 and 0.12: one small function for each change."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend import backend, core
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm


def compute_capability() -> str | None:
    """That of the GPU which Mosaic compiles for: the default device, as "9.0"; None if there is no GPU."""
    return getattr(backend.get_default_device(), "compute_capability", None)


def load(ref: Any, index: tuple, layout: Any) -> jax.Array:
    """The block of a GPU reference at `index`, in `layout`. From 0.11 on the index is part of the reference."""
    function: Any = plgpu.load
    arguments = (ref, index) if jax.__version_info__ < (0, 11) else (ref.at[index],)
    return function(*arguments, layout=layout, optimized=False)


def transposed(ref: Any) -> Any:
    """A matrix in shared memory of a GPU, its axes exchanged. From 0.11 on, references have a method for that."""
    if jax.__version_info__ < (0, 11):
        return plgpu.transpose_ref(ref, (1, 0))
    return ref.transpose((1, 0))


def inlined(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function` without the custom derivatives in it: Mosaic GPU lowers them from 0.11 on."""
    if jax.__version_info__ >= (0, 11):
        return function

    def evaluated(*arguments: jax.Array) -> jax.Array:
        program = jax.make_jaxpr(function)(*arguments)
        (result,) = _evaluate(program.jaxpr, program.consts, arguments)
        return result

    return evaluated


def _evaluate(jaxpr: core.Jaxpr, constants: Sequence, arguments: Sequence) -> list:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        operands = [read(variable) for variable in equation.invars]
        if equation.primitive.name == "custom_jvp_call":
            program = equation.params["call_jaxpr"]
            results = _evaluate(program.jaxpr, program.consts, operands)
        else:
            results = equation.primitive.bind(*operands, **equation.params)
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def rounded_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a * b)`` of float32 matrices in the layout of `wgmma`: what PTX says of `mul.rn` keeps it from any merging."""
    layout = plgpu.Layout.WGMMA

    def multiply(_, a, b):
        return a._pointwise(_rounded_product_of_registers, b)

    result = plgpu.ShapeDtypeStruct(a.shape, a.dtype, layout=layout)
    inlined: Any = plgpu.inline_mgpu(arg_types=(layout, layout), return_type=result)(multiply)
    return inlined(a, b)


def _rounded_product_of_registers(a: Any, b: Any) -> Any:
    (width,) = ir.VectorType(a.type).shape
    f32 = ir.F32Type.get()
    result = a
    for place in range(width):
        position = arith.constant(ir.IntegerType.get_signless(32), place)
        factors = [llvm.extractelement(x, position) for x in (a, b)]
        one: Any = llvm.inline_asm(f32, factors, "mul.rn.f32 $0, $1, $2;", "=f,f,f")
        result = llvm.insertelement(result, one, position)
    return result
