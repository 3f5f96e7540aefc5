"""Every float operator, compiled for an H200: the PTX holds float arithmetic that rounds as IEEE 754 does, and no other.

Needs the plug-in jax-cuda13-pjrt, but no GPU and no other part of CUDA. JAX_PLATFORMS=cpu keeps jax from seeking a GPU.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jquant
from jquant.arithmetic import exact

from . import ptx

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")

FACTOR, ADDEND = 0.1, 1.7  # what callers multiply with before an operator, and add after it
SHAPE = (1024, 1024)  # large enough for XLA to give each thread several elements
CHANNELS = SHAPE[1]
PTX_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
FLOATS = tuple(PTX_TYPES.values())


class Case(NamedTuple):
    """A call ``operator(*tensors, *parameters)``; the parameters may be traced, or constants of the program."""

    name: str
    operator: Callable
    tensors: list[jax.ShapeDtypeStruct]
    parameters: list[np.ndarray]
    divisor: np.floating | None = None  # that of the parameters which the operator divides by


def tensor(dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(SHAPE, dtype)


def dequantize_linear_cases():
    def operator(*operands):
        return jquant.dequantize_linear(*operands, feature_level="EXTENDED")

    integers = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    for integer, float_, zero_points in itertools.product(integers, FLOATS, (0, 1)):
        name = f"dequantize_linear-{np.dtype(integer)}-{np.dtype(float_)}-{zero_points}-zero-points"
        yield Case(name, operator, [tensor(integer)], [float_(0.3), integer(3)][: 1 + zero_points])


def quantize_linear_cases():
    for input, output, zero_points in itertools.product((*FLOATS, np.int32), (np.int8, np.uint8), (0, 1)):

        def operator(*operands, output=output):
            return jquant.quantize_linear(*operands, output_dtype=output, feature_level="EXTENDED")

        name = f"quantize_linear-{np.dtype(input)}-{np.dtype(output)}-{zero_points}-zero-points"
        scale = np.float32(0.3) if input is np.int32 else input(0.3)
        yield Case(name, operator, [tensor(input)], [scale, output(3)][: 1 + zero_points], scale)

    def per_channel(x, scale, zero_point):
        return jquant.quantize_linear(x, scale, zero_point, axis=1)

    scales = np.linspace(0.1, 0.9, CHANNELS, dtype=np.float32)
    yield Case("quantize_linear-per-channel", per_channel, [tensor(np.float32)], [scales, np.full(CHANNELS, 3, np.int8)])


def block_cases():
    form, parameters = {"axis": 1, "block_size": 32}, [np.full((SHAPE[0], CHANNELS // 32), 0.3, np.float32)]
    parameters.append(np.full_like(parameters[0], 3, ml_dtypes.int4))
    for operator, dtype in ((jquant.dequantize_linear, ml_dtypes.int4), (jquant.quantize_linear, np.float32)):
        yield Case(f"{operator.__name__}-blocks", functools.partial(operator, **form), [tensor(dtype)], parameters)


def dynamic_quantize_linear_cases():
    yield Case("dynamic_quantize_linear", lambda x: tuple(jquant.dynamic_quantize_linear(x)), [tensor(np.float32)], [])


def quantized_linear_add_cases():
    def operator(a, b, a_scale, a_zero_point, b_scale, b_zero_point, output_scale, output_zero_point):
        return jquant.quantized_linear_add(
            a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point
        )

    def without_zero_points(a, b, a_scale, b_scale, output_scale):
        return jquant.quantized_linear_add(a, a_scale, None, b, b_scale, None, output_scale)

    a_scale, b_scale, output_scale = np.float32([0.3, 0.7, 0.9])
    for integer in (np.int8, np.uint8):
        name, tensors = f"quantized_linear_add-{np.dtype(integer)}", [tensor(integer), tensor(np.uint8)]
        parameters = [a_scale, integer(3), b_scale, np.uint8(5), output_scale, integer(11)]
        yield Case(name, operator, tensors, parameters, output_scale)
        parameters = [a_scale, b_scale, output_scale]
        yield Case(f"{name}-0-zero-points", without_zero_points, tensors, parameters, output_scale)


def quantized_linear_cases():
    """What else has the form of the sum: dequantize, compute, quantize."""

    def multiplied(a, b, a_scale, b_scale, output_scale):
        return jquant.quantized_linear_multiply(a, a_scale, 3, b, b_scale, 5, output_scale, 11)

    def rectified(x, x_scale, alpha, output_scale):
        return jquant.quantized_linear_leaky_relu(x, x_scale, 3, output_scale, 11, alpha=alpha)

    def joined(a, b, a_scale, b_scale, output_scale):
        return jquant.quantized_linear_concat([(a, a_scale, 3), (b, b_scale, 5)], output_scale, 11, axis=0)

    scales = list(np.float32([0.3, 0.7, 0.9]))
    for integer in (np.int8, np.uint8):
        tensors = [tensor(integer), tensor(np.uint8)]
        yield Case(f"quantized_linear_multiply-{np.dtype(integer)}", multiplied, tensors, scales, scales[-1])
        yield Case(f"quantized_linear_leaky_relu-{np.dtype(integer)}", rectified, tensors[:1], scales, scales[-1])
    yield Case("quantized_linear_concat", joined, tensors, scales, scales[-1])


def clip_cases():
    def bounded(x, min, max, scale, bias):
        return jquant.clip(x, min, max, scale_bias=jquant.ScaleBias(scale, bias), feature_level="EXTENDED")

    def unbounded(x, scale, bias):
        return jquant.clip(x, scale_bias=jquant.ScaleBias(scale, bias), feature_level="EXTENDED")

    def plain(x, min, max):
        return jquant.clip(x, min, max, feature_level="EXTENDED")

    def typed_bounds(x, min, max, scale, bias):
        return jquant.clip1(x, min, max, scale_bias=jquant.ScaleBias(scale, bias), feature_level="EXTENDED")

    def gradient(x, gradient, min, max):
        return jquant.clip_gradient(x, gradient, min, max, feature_level="EXTENDED")

    min, max, scale, bias = np.float32([-2, 6, 0.3, 0.7])
    for float_ in FLOATS:
        name = f"clip-{np.dtype(float_)}"
        yield Case(f"{name}-scale-bias", bounded, [tensor(float_)], [min, max, scale, bias])
        yield Case(f"{name}-scale-bias-unbounded", unbounded, [tensor(float_)], [scale, bias])
        yield Case(f"{name}-plain", plain, [tensor(float_)], [min, max])
        typed = [float_(min), float_(max), scale, bias]
        yield Case(f"clip1-{np.dtype(float_)}", typed_bounds, [tensor(float_)], typed)
        yield Case(f"clip_gradient-{np.dtype(float_)}", gradient, [tensor(float_), tensor(float_)], [min, max])


def quantize_cases():
    modes = [
        (jquant.QuantizeMode.MIN_COMBINED, jquant.RoundMode.HALF_AWAY_FROM_ZERO, (None, 1)),
        (jquant.QuantizeMode.MIN_FIRST, jquant.RoundMode.HALF_AWAY_FROM_ZERO, (None,)),
        (jquant.QuantizeMode.SCALED, jquant.RoundMode.HALF_AWAY_FROM_ZERO, (None, 1)),
        (jquant.QuantizeMode.SCALED, jquant.RoundMode.HALF_TO_EVEN, (None, 1)),
    ]
    ranges = {
        None: [np.float32(-1.3), np.float32(5.9)],
        1: [np.linspace(-3, 0.1, CHANNELS, dtype=np.float32), np.linspace(0.2, 7, CHANNELS, dtype=np.float32)],
    }
    for dtype, (mode, round_mode, axes) in itertools.product(("qint8", "quint8", "qint16", "quint16", "qint32"), modes):
        for axis in axes:

            def operator(x, low, high, arguments=(dtype, mode, round_mode, axis)):
                dtype, mode, round_mode, axis = arguments
                return jquant.quantize(x, low, high, dtype, mode=mode, round_mode=round_mode, axis=axis)

            name = f"quantize-{dtype}-{mode}-{round_mode}-{'tensor' if axis is None else 'channel'}"
            yield Case(name, operator, [tensor(np.float32)], ranges[axis])


def straight_through_cases():
    ranges = {None: np.float32([-1.3, 5.9]), 1: np.linspace([-3, 0.2], [0.1, 7], CHANNELS, dtype=np.float32, axis=1)}
    for (axis, (low, high)), round_mode in itertools.product(ranges.items(), ("HALF_TO_EVEN", "HALF_UP")):
        operator = functools.partial(jquant.quantize_and_dequantize, round_mode=round_mode, axis=axis)
        yield Case(f"quantize_and_dequantize-{round_mode}-{axis}", operator, [tensor(np.float32)], [low, high])
    yield Case("quantize_and_dequantize-own-range", jquant.quantize_and_dequantize, [tensor(np.float32)], [])
    for axis, (low, high) in ranges.items():
        operator = functools.partial(jquant.fake_quantize, axis=axis)
        scale = (high - low) / np.float32(255) if axis is None else None  # it divides by one, and by none of many
        yield Case(f"fake_quantize-{axis}", operator, [tensor(np.float32)], [low, high], scale)


def product_cases():
    """The epilogues of the integer products, as XLA compiles them behind its own product."""

    def to_float(a, b, a_scale, b_scale, bias):
        return jquant.matmul_integer_to_float(a, a_scale, 3, b, b_scale, None, bias, feature_level="EXTENDED")

    def quantized(a, b, a_scale, b_scale, output_scale):
        return jquant.quantized_linear_matmul(a, a_scale, 3, b, b_scale, None, output_scale, np.uint8(7))

    tensors = [tensor(np.uint8), tensor(np.int8)]
    a_scale, b_scale, bias = np.float32(0.3), np.linspace(0.1, 0.9, CHANNELS), np.linspace(-3, 3, CHANNELS)[None, :]
    for float_ in FLOATS:
        parameters = [np.asarray(x, float_) for x in (a_scale, b_scale, bias)]
        yield Case(f"matmul_integer_to_float-{np.dtype(float_)}", to_float, tensors, parameters)
    parameters = [a_scale, b_scale.astype(np.float32), np.float32(0.7)]
    yield Case("quantized_linear_matmul", quantized, tensors, parameters, np.float32(0.7))

    def convolved(x, w, x_scale, w_scale, y_scale):
        """Of one channel: the multiplications are in the same kernel."""
        image, filter = x.reshape(1, 1, *SHAPE), w[:4, :4].reshape(1, 1, 4, 4)
        return jquant.quantized_linear_convolution(image, x_scale, 3, filter, w_scale, None, y_scale, np.uint8(7))

    yield Case(
        "quantized_linear_convolution", convolved, tensors, [a_scale, np.float32(0.2), np.float32(0.7)], np.float32(0.7)
    )


def dequantize_cases():
    low, high = np.float32([-1.3, 5.9])
    for integer, mode in itertools.product((np.int8, np.int32), jquant.QuantizeMode):
        operator = functools.partial(jquant.dequantize, mode=mode)
        yield Case(f"dequantize-{np.dtype(integer)}-{mode}", operator, [tensor(integer)], [low, high])


def nonlinear_cases():
    parameters = [np.float32(0.3), np.uint8(3), np.float32(0.7), np.uint8(7)]
    yield Case("quantized_linear_sigmoid", jquant.quantized_linear_sigmoid, [tensor(np.uint8)], parameters, parameters[2])
    softmax = functools.partial(jquant.quantized_linear_softmax, axis=1)
    yield Case("quantized_linear_softmax", softmax, [tensor(np.uint8)], parameters, parameters[2])
    images = [jax.ShapeDtypeStruct((8, 16, 64, 128), np.uint8)]
    pool = functools.partial(jquant.quantized_linear_average_pool, window_sizes=(3, 2), padding="SAME")
    yield Case("quantized_linear_average_pool", pool, images, parameters, parameters[2])
    pool = jquant.quantized_linear_global_average_pool
    yield Case("quantized_linear_global_average_pool", pool, images, parameters, parameters[2])


CASES = [
    *dequantize_linear_cases(),
    *quantize_linear_cases(),
    *block_cases(),
    *dynamic_quantize_linear_cases(),
    *quantized_linear_add_cases(),
    *quantized_linear_cases(),
    *clip_cases(),
    *quantize_cases(),
    *straight_through_cases(),
    *dequantize_cases(),
    *product_cases(),
    *nonlinear_cases(),
]


def traced(case: Case) -> tuple[Callable, list[jax.ShapeDtypeStruct]]:
    return case.operator, case.tensors + [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in case.parameters]


def folded(case: Case) -> tuple[Callable, list[jax.ShapeDtypeStruct]]:
    return lambda *tensors: case.operator(*tensors, *case.parameters), case.tensors


def divisors(case: Case, program: Callable) -> list[np.floating]:
    return [case.divisor] if program is folded and case.divisor is not None else []


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def is_narrow(case: Case) -> bool:
    """Whether the operator gives floats of 16 bits."""
    function, arguments = traced(case)
    return all(is_float(y) and y.dtype.itemsize == 2 for y in jax.tree.leaves(jax.eval_shape(function, *arguments)))


@pytest.mark.parametrize(
    ("case", "program"),
    [pytest.param(*pair, id=pair[0].name) for pair in zip(CASES, itertools.cycle([traced, folded]), strict=False)],
)
def test_operator_alone(case, program):
    """Each case with its parameters traced or constant, by turns; amid a caller's arithmetic it has both."""
    function, arguments = program(case)
    kernels = ptx.compile(function, *arguments)
    assert len(kernels) > 0
    assert ptx.inexact(kernels, divisors(case, program)) == []


@pytest.mark.parametrize("program", [traced, folded])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_amid_the_arithmetic_of_a_caller(case, program):
    function, arguments = program(case)

    def caller(*arguments):
        outputs = function(*(x * FACTOR if is_float(x) else x for x in arguments))
        return jax.tree.map(lambda y: (y if is_float(y) else y.astype(jnp.float32)) + ADDEND, outputs)

    kernels = ptx.compile(caller, *arguments)
    assert ptx.inexact(kernels, divisors(case, program)) == []
    # The caller's own constants stand in the program, and meet none of the operator's arithmetic.
    outputs = jax.tree.leaves(jax.eval_shape(caller, *arguments))
    assert types_of(callers_instructions(kernels, "mul.rn", FACTOR)) == {x.dtype for x in arguments if is_float(x)}
    assert types_of(callers_instructions(kernels, "add.rn", ADDEND)) == {y.dtype for y in outputs}
    assert merged(kernels) == []


@pytest.mark.parametrize("program", [traced, folded])
@pytest.mark.parametrize("case", [case for case in CASES if is_narrow(case)], ids=lambda case: case.name)
def test_result_is_rounded_before_a_caller_widens_it(case, program):
    function, arguments = program(case)
    kernels = ptx.compile(lambda *arguments: function(*arguments).astype(jnp.float32) * FACTOR, *arguments)
    assert set(widenings(kernels)) == {f"cvt.f32.{ptx_type(jax.eval_shape(function, *arguments).dtype)}"}


def widenings(kernels: list[ptx.Kernel]) -> Iterator[str]:
    """What gives the numbers that the caller multiplies."""
    for kernel, product in callers_instructions(kernels, "mul.rn", FACTOR):
        yield from (kernel.definition(x).opcode for x in product.operands if x.startswith("%"))


def callers_instructions(kernels: list[ptx.Kernel], operation: str, constant: float):
    """The instructions, with their kernels, in which a constant of the caller's stands as it was written."""
    constants = {f"{operation}.{name}": ptx_constant(constant, type) for name, type in PTX_TYPES.items()}
    pairs = [(kernel, one) for kernel in kernels for one in kernel.instructions]
    return [(kernel, one) for kernel, one in pairs if constants.get(one.opcode) in one.operands]


def ptx_type(dtype: np.dtype) -> str:
    return next(name for name, type in PTX_TYPES.items() if dtype == type)


def ptx_constant(value: float, type: type) -> str:
    return f"0f{type(value).view(np.uint32):08X}" if type is np.float32 else f"0x{type(value).view(np.uint16):04X}"


def types_of(instructions: list[tuple[ptx.Kernel, ptx.Instruction]]) -> set[np.dtype]:
    return {np.dtype(PTX_TYPES[one.opcode.split(".")[-1]]) for _, one in instructions}


def merged(kernels: list[ptx.Kernel]) -> list[str]:
    """The arithmetic that takes a product of the caller's or gives to a sum of theirs, with no `exact.seal` between."""
    found = []
    for kernel, product in callers_instructions(kernels, "mul.rn", FACTOR):
        found += [use.text for use in kernel.uses(product) if is_arithmetic(kernel, use)]
    for kernel, sum in callers_instructions(kernels, "add.rn", ADDEND):
        neighbours = [*kernel.uses(sum), *map(kernel.definition, sum.operands)]
        found += [one.text for one in neighbours if is_arithmetic(kernel, one)]
    return found


def is_arithmetic(kernel: ptx.Kernel, one: ptx.Instruction) -> bool:
    return one.opcode.startswith(("add.r", "sub.r", "mul.r", "div.")) and not is_of_a_seal(kernel, one)


def is_of_a_seal(kernel: ptx.Kernel, one: ptx.Instruction) -> bool:
    """``x + x`` of ``select(p, x, x + x)``; or ``x + select(p, -0.0, x)``, which LLVM makes of it if x is no NaN."""
    a, b = one.operands
    return one.opcode.startswith("add.rn.") and (a == b or is_zero_or(kernel, a, b) or is_zero_or(kernel, b, a))


def is_zero_or(kernel: ptx.Kernel, register: str, x: str) -> bool:
    """Whether a register is ``select(..., -0.0, x)``."""
    select = kernel.definition(register)
    return select.opcode.startswith("selp.") and select.operands[:2] in (["0f80000000", x], ["0x8000", x])


# ---------------------------------------------------------------------------------------------------------------------
# That the checks can fail.

KERNEL = """
.visible .entry kernel(
	.param .u64 .ptr .align 16 kernel_param_0
)
{
	.reg .b32 	%r<5>;

	ld.global.nc.b32 	%r1, [%rd1+4];
	mul.rn.f32 	%r2, %r1, 0f3DCCCCCD;
	INSTRUCTION
	st.global.b32 	[%rd2], %r3;
	ret;

}
"""


@pytest.mark.parametrize("opcode", ["add.rn.f32", "sub.rn.f32", "div.rn.f32", "max.NaN.f32", "add.s32", "add.rn.bf16"])
def test_exact_instruction_is_none_to_report(opcode):
    kernels = ptx.parse(KERNEL.replace("INSTRUCTION", f"{opcode} \t%r3, %r2, %r1;"))
    assert ptx.inexact(kernels) == []


@pytest.mark.parametrize(
    "instruction",
    [
        "fma.rn.f32 	%r3, %r2, %r1, %r1;",
        "mad.rn.f32 	%r3, %r2, %r1, %r1;",
        "fma.rn.f16 	%rs3, %rs2, %rs1, %rs1;",
        "fma.rn.f16x2 	%r3, %r2, %r1, %r1;",
        "fma.rn.bf16 	%rs3, %rs2, %rs1, %rs1;",
        "fma.rn.f64 	%rd3, %rd2, %rd1, %rd1;",
        "add.f32 	%r3, %r2, %r1;",  # ptxas may merge it with the multiplication
        "mul.f16x2 	%r3, %r2, %r1;",
        "add.rn.ftz.f32 	%r3, %r2, %r1;",
        "mul.rz.f32 	%r3, %r2, %r1;",
        "add.rz.f32 	%r3, %r2, 0f3F000000;",  # not the half with the sign of x
        "rcp.rn.f32 	%r3, %r1;",
        "rcp.approx.ftz.f32 	%r3, %r1;",
        "div.approx.f32 	%r3, %r2, %r1;",
        "cvt.rz.f16.f32 	%rs3, %r2;",
        "@%p1 sqrt.approx.f32 	%r3, %r2;",
        "call.uni (retval0), __nv_fmaf, (param0, param1, param2);",
    ],
)
def test_inexact_instruction_is_reported(instruction):
    assert ptx.inexact(ptx.parse(KERNEL.replace("INSTRUCTION", instruction))) == [instruction]


def test_division_that_is_stored_is_reported():
    kernels = ptx.parse(KERNEL.replace("INSTRUCTION", "div.full.f32 %r3, %r2, %r1;"))
    assert ptx.inexact(kernels) == ["div.full.f32 %r3, %r2, %r1; -> st.global.b32 	[%rd2], %r3;"]


@pytest.mark.parametrize(
    "instruction", ["mul.rn.f32 	%r3, %r2, %r1;", "add.rn.f32 	%r3, %r1, %r2;", "div.full.f32 	%r3, %r1, %r2;"]
)
def test_arithmetic_with_a_product_of_the_callers_is_reported(instruction):
    assert merged(ptx.parse(KERNEL.replace("INSTRUCTION", instruction))) == [instruction]


@pytest.mark.parametrize(
    ("instruction", "reported"),
    [
        ("add.rn.f32 	%r3, %r1, 0f3FD9999A;", []),
        ("add.rn.f32 	%r3, %r4, 0f3FD9999A;", ["sub.rn.f32 	%r4, %r1, %r5;"]),
        ("add.rn.f32 	%r6, %r1, 0f3FD9999A;\n	mul.rn.f32 	%r3, %r6, %r1;", ["mul.rn.f32 	%r3, %r6, %r1;"]),
    ],
)
def test_arithmetic_that_gives_to_a_sum_of_the_callers_is_reported(instruction, reported):
    kernels = ptx.parse(KERNEL.replace("INSTRUCTION", f"sub.rn.f32 	%r4, %r1, %r5;\n	{instruction}"))
    assert merged(kernels) == reported


def test_text_that_is_no_ptx_raises():
    with pytest.raises(ValueError, match="no PTX instruction: '%r3 = add %r1, %r2;'"):
        ptx.parse(KERNEL.replace("INSTRUCTION", "%r3 = add %r1, %r2;"))


def opcodes_reported(function: Callable, *arguments: jax.ShapeDtypeStruct, divisors=()) -> set[str]:
    return {line.split()[0] for line in ptx.inexact(ptx.compile(function, *arguments), divisors)}


VECTOR, SCALAR = jax.ShapeDtypeStruct((512,), np.float32), jax.ShapeDtypeStruct((), np.float32)


def test_plain_division_is_reported():
    assert opcodes_reported(lambda x, d: jnp.round(x / d), VECTOR, SCALAR) == {"div.full.f32"}


def test_multiplication_with_the_reciprocal_is_reported():
    assert opcodes_reported(lambda x: jnp.round(x / 0.3), VECTOR, divisors=[np.float32(0.3)]) == {"mul.rn.f32"}


def native(numerator, divisor):
    return exact.native_quotient(numerator, divisor)


def uncorrected(numerator, divisor, approximation):
    return approximation.astype(jnp.int32)


@pytest.mark.parametrize(
    ("name", "replacement"), [("corrected_quotient", native), ("nearest_integer_quotient", uncorrected)]
)
def test_quotient_without_its_correction_is_reported(monkeypatch, name, replacement):
    def function(x, d):
        return jnp.round(exact.quotient(x, d))

    assert opcodes_reported(function, VECTOR, SCALAR) == set()
    jax.clear_caches()
    monkeypatch.setattr(exact, name, replacement)
    assert opcodes_reported(function, VECTOR, SCALAR) == {"div.full.f32"}
    jax.clear_caches()
