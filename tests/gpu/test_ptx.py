"""Every float operator, compiled for an H200: its PTX has only float arithmetic that rounds as IEEE 754 does.

Needs the plug-in jax-cuda13-pjrt, but no GPU and no other part of CUDA. JAX_PLATFORMS=cpu keeps jax from seeking a GPU.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from support.sampling import one_in

from jquant.arithmetic import exact, significands
from jquant.cases import CASES, VARIANTS, Case

from . import ptx

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")

FACTOR, ADDEND = 0.1, 1.7  # constants that callers multiply by before an operator, and add after it
ROWS = 2**18  # enough for XLA to give each thread several elements
PTX_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# A float product of matrices is promised within a bound, and is the platform's own.
EVERY = {name: case for name, case in (CASES | VARIANTS).items() if name.split(",")[0] != "matmul_n_bits"}


def traced(case: Case) -> tuple[Callable, tuple]:
    """A program whose parameters are all arguments of the operator."""
    return case.function, case.shapes(ROWS)


def folded(case: Case) -> tuple[Callable, tuple]:
    """A program whose parameters are the arguments that have rows; the other arguments are constants."""
    arguments = case.arguments()

    def program(*tensors):
        remaining = iter(tensors)
        return case.function(*(next(remaining) if index in case.rows else value for index, value in enumerate(arguments)))

    shapes = case.shapes(ROWS)
    return program, tuple(shapes[index] for index in case.rows)


def divisors(case: Case, program: Callable) -> list[np.floating]:
    """The constants that the program divides by."""
    divides = program is folded and case.divisor is not None
    return [*np.ravel(case.divisor(*case.arguments()))] if divides else []


def is_float(x) -> bool:
    """Whether an array has a float type that GPUs compute with."""
    return x.dtype in PTX_TYPES.values()


def number(x: jax.Array) -> jax.Array:
    """`x` as a float that a caller computes with: of floats of 8 and 4 bits, the codes."""
    if jnp.issubdtype(x.dtype, jnp.floating) and not is_float(x):
        x = lax.bitcast_convert_type(x, f"uint{jnp.finfo(x.dtype).bits}")
    return x if is_float(x) else x.astype(jnp.float32)


def is_narrow(case: Case) -> bool:
    """Whether the operator returns floats of 16 bits."""
    results = case.formula(*case.arguments())
    return all(is_float(y) and y.dtype.itemsize == 2 for y in jax.tree.leaves(results))


PROGRAMS = [traced, folded]


def alternately(names: Iterable[str]) -> list[tuple[str, Callable]]:
    """Each name with one of the two programs, alternately."""
    return list(zip(names, itertools.cycle(PROGRAMS)))


def in_both(names: Iterable[str]) -> list[tuple[str, Callable]]:
    return [*itertools.product(names, PROGRAMS)]


def name_of(value: str | Callable) -> str:
    return value if isinstance(value, str) else value.__name__


@one_in(3, ("name", "program"), alternately(EVERY), ids=name_of, gate=3)
def test_operator_alone(name, program):
    """With traced or with constant parameters, alternately."""
    function, arguments = program(EVERY[name])
    kernels = ptx.compile(function, *arguments)
    assert len(kernels) > 0
    assert ptx.inexact(kernels, divisors(EVERY[name], program)) == []


@one_in(7, ("name", "program"), in_both(EVERY), ids=name_of, gate=5)
def test_operator_in_a_callers_program(name, program):
    function, arguments = program(EVERY[name])

    def caller(*arguments):
        arguments = jax.tree.map(lambda x: x * FACTOR if is_float(x) else x, arguments)
        return jax.tree.map(lambda y: number(y) + ADDEND, function(*arguments))

    kernels = ptx.compile(caller, *arguments)
    assert ptx.inexact(kernels, divisors(EVERY[name], program)) == []
    # The caller's constants are still in the program, and are not merged with the operator's arithmetic.
    outputs = jax.tree.leaves(jax.eval_shape(caller, *arguments))
    factors = {x.dtype for x in jax.tree.leaves(arguments) if is_float(x)}
    assert types_of(callers_instructions(kernels, "mul.rn", FACTOR)) == factors
    assert types_of(callers_instructions(kernels, "add.rn", ADDEND)) == {y.dtype for y in outputs}
    assert merged(kernels) == []


NARROW = [name for name, case in EVERY.items() if is_narrow(case)]


@one_in(3, ("name", "program"), in_both(NARROW), ids=name_of, gate=3)
def test_result_is_rounded_before_a_caller_widens_it(name, program):
    function, arguments = program(EVERY[name])
    kernels = ptx.compile(lambda *arguments: function(*arguments).astype(jnp.float32) * FACTOR, *arguments)
    assert set(widenings(kernels)) == {f"cvt.f32.{ptx_type(jax.eval_shape(function, *arguments).dtype)}"}


def widenings(kernels: list[ptx.Kernel]) -> Iterator[str]:
    """The opcodes of the instructions that compute what the caller multiplies."""
    for kernel, product in callers_instructions(kernels, "mul.rn", FACTOR):
        definitions = [kernel.definition(x) for x in product.operands if x.startswith("%")]
        yield from ("cvt.f32.bf16" if is_rounded(kernel, x) else x.opcode for x in definitions)


def is_rounded(kernel: ptx.Kernel, select: ptx.Instruction) -> bool:
    """Whether this is a float32 rounded to bfloat16, without being converted: its last 16 bits are 0, if it is no NaN.

    32767 and the last bit that remains are added to the bits first, which rounds half to even.
    """
    if select.opcode != "selp.f32":
        return False
    x, rounded, _ = select.operands
    mask = kernel.definition(rounded)
    if mask.opcode != "and.b32" or mask.operands[1] != "-65536":
        return False
    addition = kernel.definition(mask.operands[0])
    odd = kernel.definition(addition.operands[0])
    return [addition.opcode, addition.operands[1], odd.opcode] == ["add.s32", "32767", "add.s32"] and odd.operands[0] == x


def callers_instructions(kernels: list[ptx.Kernel], operation: str, constant: float):
    """The instructions, with their kernels, that have the caller's constant as it was written."""
    constants = {f"{operation}.{name}": ptx_constant(constant, type) for name, type in PTX_TYPES.items()}
    pairs = [(kernel, instruction) for kernel in kernels for instruction in kernel.instructions]
    return [
        (kernel, instruction) for kernel, instruction in pairs if constants.get(instruction.opcode) in instruction.operands
    ]


def ptx_type(dtype: np.dtype) -> str:
    return next(name for name, type in PTX_TYPES.items() if dtype == type)


def ptx_constant(value: float, type: type) -> str:
    return f"0f{type(value).view(np.uint32):08X}" if type is np.float32 else f"0x{type(value).view(np.uint16):04X}"


def types_of(instructions: list[tuple[ptx.Kernel, ptx.Instruction]]) -> set[np.dtype]:
    return {np.dtype(PTX_TYPES[instruction.opcode.split(".")[-1]]) for _, instruction in instructions}


def merged(kernels: list[ptx.Kernel]) -> list[str]:
    """The arithmetic next to a product or a sum of the caller, with no `exact.seal` between."""
    texts = []
    for kernel, product in callers_instructions(kernels, "mul.rn", FACTOR):
        texts += [use.text for use in kernel.uses(product) if is_arithmetic(kernel, use)]
    for kernel, sum in callers_instructions(kernels, "add.rn", ADDEND):
        neighbours = [*kernel.uses(sum), *map(kernel.definition, sum.operands)]
        texts += [instruction.text for instruction in neighbours if is_arithmetic(kernel, instruction)]
    return texts


def is_arithmetic(kernel: ptx.Kernel, instruction: ptx.Instruction) -> bool:
    return instruction.opcode.startswith(("add.r", "sub.r", "mul.r", "div.")) and not is_of_a_seal(kernel, instruction)


def is_of_a_seal(kernel: ptx.Kernel, instruction: ptx.Instruction) -> bool:
    """Whether this is ``x + x`` of ``select(p, x, x + x)``; or ``x + select(p, -0.0, x)``, LLVM's form if x is no NaN."""
    a, b = instruction.operands
    return instruction.opcode.startswith("add.rn.") and (a == b or is_zero_or(kernel, a, b) or is_zero_or(kernel, b, a))


def is_zero_or(kernel: ptx.Kernel, register: str, x: str) -> bool:
    """Whether a register is ``select(..., -0.0, x)``."""
    select = kernel.definition(register)
    return select.opcode.startswith("selp.") and select.operands[:2] in (["0f80000000", x], ["0x8000", x])


# ---------------------------------------------------------------------------------------------------------------------
# The checks can fail.

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
def test_exact_instruction_is_not_reported(opcode):
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


SATURATED = """div.full.f32 	%r4, %r2, %r1;
	setp.le.f32 	%p1, %r4, 0fCF000000;
	selp.f32 	%r5, 0fCF000000, %r4, %p1;
	cvt.rzi.s32.f32 	%r6, %r5;
	setp.ge.f32 	%p2, %r4, 0f4F000000;
	selp.b32 	%r7, 2147483647, %r6, %p2;
	setp.nan.f32 	%p3, %r4, %r4;
	selp.b32 	%r8, 0, %r7, %p3;
	"""


@pytest.mark.parametrize(("operation", "reported"), [("mul.lo.s32", 0), ("add.s32", 1)])
def test_division_to_an_integer_is_reported_without_a_remainder(operation, reported):
    kernels = ptx.parse(KERNEL.replace("INSTRUCTION", f"{SATURATED}{operation} 	%r3, %r8, %r1;"))
    assert len(ptx.inexact(kernels)) == reported


@pytest.mark.parametrize(
    "instruction", ["mul.rn.f32 	%r3, %r2, %r1;", "add.rn.f32 	%r3, %r1, %r2;", "div.full.f32 	%r3, %r1, %r2;"]
)
def test_arithmetic_with_a_callers_product_is_reported(instruction):
    assert merged(ptx.parse(KERNEL.replace("INSTRUCTION", instruction))) == [instruction]


@pytest.mark.parametrize(
    ("instruction", "reported"),
    [
        ("add.rn.f32 	%r3, %r1, 0f3FD9999A;", []),
        ("add.rn.f32 	%r3, %r4, 0f3FD9999A;", ["sub.rn.f32 	%r4, %r1, %r5;"]),
        ("add.rn.f32 	%r6, %r1, 0f3FD9999A;\n	mul.rn.f32 	%r3, %r6, %r1;", ["mul.rn.f32 	%r3, %r6, %r1;"]),
    ],
)
def test_arithmetic_before_a_callers_sum_is_reported(instruction, reported):
    kernels = ptx.parse(KERNEL.replace("INSTRUCTION", f"sub.rn.f32 	%r4, %r1, %r5;\n	{instruction}"))
    assert merged(kernels) == reported


def test_invalid_ptx_raises():
    with pytest.raises(ValueError, match="no PTX instruction: '%r3 = add %r1, %r2;'"):
        ptx.parse(KERNEL.replace("INSTRUCTION", "%r3 = add %r1, %r2;"))


def opcodes_reported(function: Callable, *arguments: jax.ShapeDtypeStruct, divisors=()) -> set[str]:
    return {line.split()[0] for line in ptx.inexact(ptx.compile(function, *arguments), divisors)}


VECTOR, SCALAR = jax.ShapeDtypeStruct((512,), np.float32), jax.ShapeDtypeStruct((), np.float32)


def test_plain_division_is_reported():
    assert opcodes_reported(lambda x, d: jnp.round(x / d), VECTOR, SCALAR) == {"div.full.f32"}


def test_multiplication_by_the_reciprocal_is_reported():
    assert opcodes_reported(lambda x: jnp.round(x / 0.3), VECTOR, divisors=[np.float32(0.3)]) == {"mul.rn.f32"}


def native(numerator, divisor):
    return exact.native_quotient(numerator, divisor)


def uncorrected(numerator, divisor, approximation):
    return approximation.astype(jnp.int32)


@pytest.mark.parametrize(
    ("module", "name", "replacement"),
    [(exact, "corrected_quotient", native), (significands, "nearest_integer_quotient", uncorrected)],
)
def test_quotient_without_its_correction_is_reported(monkeypatch, module, name, replacement):
    def function(x, d):
        return jnp.round(exact.quotient(x, d))

    assert opcodes_reported(function, VECTOR, SCALAR) == set()
    jax.clear_caches()
    monkeypatch.setattr(module, name, replacement)
    assert opcodes_reported(function, VECTOR, SCALAR) == {"div.full.f32"}
    jax.clear_caches()
