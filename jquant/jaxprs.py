"""Access to jaxprs: all that depends on how a version of JAX represents programs is here."""

import functools
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal as Literal
from jax.interpreters import partial_eval

Equation = Any  # a `jax.extend.core.JaxprEqn`, whose type says little about what it holds
Jaxpr = Any  # a `jax.extend.core.Jaxpr`, likewise
Path = tuple[Any, ...]  # the indices of the equations, and of the branches, that lead to an equation


class Program(NamedTuple):
    """A program: its equations, and the values of its constants."""

    jaxpr: Jaxpr
    constants: Sequence[Any]


class Traced(NamedTuple):
    """The program of a function of pytrees, and the tree of its outputs, as `jax.ShapeDtypeStruct`."""

    program: Program
    outputs: Any


def closed(jaxpr: Any) -> Program:
    """The program in the parameters of an equation: a closed jaxpr, or an open one, which has no constants."""
    return Program(jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else Program(jaxpr, ())


def trace(function: Callable, *arguments: Any) -> Traced:
    """The program of a function, without dead code. Every leaf of the arguments stays an input of it."""
    jaxpr, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
    program = closed(jaxpr)
    alive, _ = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars), instantiate=True)
    return Traced(Program(alive, program.constants), outputs)


@jax.jit
def _empty() -> tuple:
    return ()


def context() -> Hashable:
    """The settings of JAX under which programs are traced now: precision, x64, mesh, named axes and the rest.

    Equal settings are one object, which is forgotten with `jax.clear_caches`: it is what JAX itself keeps under them.
    `jax.disable_jit` is none of them: it would unroll the loops of a program that is there.
    """
    with jax.disable_jit(False), jax.ensure_compile_time_eval():  # whatever trace this is called in
        return _empty.trace().jaxpr


def input_types(inputs: Any) -> Hashable:
    """What a program is traced for: the tree of the inputs, and their types."""
    leaves, structure = jax.tree.flatten(inputs)
    return structure, tuple(map(jax.typeof, leaves))


def without_unused_inputs(program: Program) -> tuple[Program, list[bool]]:
    """The program with only the inputs that it reads, and which inputs those are."""
    jaxpr, constants = program
    alive, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return Program(alive, constants), used


def evaluate(program: Program, *inputs: Any) -> list[Any]:
    return jax.core.eval_jaxpr(program.jaxpr, program.constants, *inputs)


def without_dead_code(function: Callable) -> Callable:
    """A function without its dead code and what that reads, which JAX 0.10 keeps in the body of a `jax.lax.while_loop`."""

    def alive(*arguments: Any) -> Any:
        program, outputs = trace(function, *arguments)
        return jax.tree.unflatten(jax.tree.structure(outputs), evaluate(program, *jax.tree.leaves(arguments)))

    return alive


def bind(equation: Equation, *values: Any) -> list[Any]:
    """The outputs of an equation for these inputs."""
    parameters = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*values, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def empty_outputs(equation: Equation) -> list[Any] | None:
    """The outputs of an equation all of whose outputs have no elements, whatever its inputs are; None for others."""
    types = [var.aval for var in equation.outvars]
    if equation.effects or not types or not all(map(_is_empty, types)):
        return None
    return [jnp.zeros(type.shape, type.dtype) for type in types]


def _is_empty(type: Any) -> bool:
    """Whether a type has no elements, nor says how they lie on a mesh."""
    sizes = [size for size in getattr(type, "shape", ()) if isinstance(size, int)]
    has_numbers = isinstance(getattr(type, "dtype", None), np.dtype)
    return 0 in sizes and has_numbers and not varying_axes(type) and type.sharding.mesh.empty


class Loop(NamedTuple):
    """A `jax.lax.scan`."""

    body: Program
    num_constants: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def loop(equation: Equation) -> Loop:
    parameters = equation.params
    if "ft_in" in parameters:
        num_constants, num_carry, _ = map(len, parameters["ft_in"].unpack())
    else:
        num_constants, num_carry = parameters["num_consts"], parameters["num_carry"]
    return Loop(
        body=closed(parameters["jaxpr"]),
        num_constants=num_constants,
        num_carry=num_carry,
        length=parameters["length"],
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
    )


class WhileLoop(NamedTuple):
    """A `jax.lax.while_loop`."""

    condition: Program
    body: Program
    num_condition_constants: int
    num_body_constants: int


def while_loop(equation: Equation) -> WhileLoop:
    parameters = equation.params
    return WhileLoop(
        condition=closed(parameters["cond_jaxpr"]),
        body=closed(parameters["body_jaxpr"]),
        num_condition_constants=parameters["cond_nconsts"],
        num_body_constants=parameters["body_nconsts"],
    )


class ShardMap(NamedTuple):
    """A `jax.shard_map`."""

    body: Program
    mesh: Any
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    options: dict[str, Any]


def shard_map(equation: Equation) -> ShardMap:
    parameters = equation.params
    return ShardMap(
        body=closed(parameters["jaxpr"]),
        mesh=parameters["mesh"],
        in_specs=parameters["in_specs"],
        out_specs=parameters["out_specs"],
        options={"check_vma": parameters["check_vma"], "axis_names": parameters["newly_manual_axes"]},
    )


def varying_axes(type: Any) -> frozenset[str]:
    """The axes of a mesh over which a value of this type may vary, inside a `jax.shard_map` that checks this."""
    return type.mat.varying if hasattr(type, "mat") else getattr(type, "vma", frozenset())


def vary(array: jax.Array, axes: frozenset[str]) -> jax.Array:
    """An array that may vary over these axes as well."""
    missing = tuple(axes - varying_axes(jax.typeof(array)))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


_CALLS = {  # the primitives that call one program with their inputs, and the parameter that holds it
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
REMATERIALIZED = "remat2", "checkpoint"


def called(equation: Equation) -> Program | None:
    """The program that an equation calls once with its inputs; None if it is no such call."""
    if equation.primitive.name == "call_hi_primitive":  # of JAX 0.12, which holds functions of jax.numpy
        expand = functools.partial(equation.primitive.to_lojax, **equation.params)
        with equation.ctx.manager:
            return closed(jax.make_jaxpr(expand)(*(atom.aval for atom in equation.invars)))
    name = _CALLS.get(equation.primitive.name)
    return None if name is None else closed(equation.params[name])


def programs(equation: Equation) -> Iterator[Jaxpr]:
    """All programs in the parameters of an equation."""
    return (program.jaxpr for program in closed_programs(equation))


def closed_programs(equation: Equation) -> Iterator[Program]:
    """All programs in the parameters of an equation, with their constants."""
    for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
        if _is_program(leaf):
            yield closed(leaf)


def _is_program(leaf: Any) -> bool:
    return hasattr(leaf, "eqns") and hasattr(leaf, "invars")


def name_stack(equation: Equation) -> str:
    return str(equation.source_info.name_stack)


_LIBRARIES = tuple(os.path.join(os.path.dirname(file), "") for file in (jax.__file__, __file__))


def source(equation: Equation) -> str:
    """The function and the line of the caller's code that an equation is from; "" inside of what JAX or jquant jits."""
    traceback = equation.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if frame.file_name == __file__:  # who traces the program
            return ""
        if not frame.file_name.startswith(_LIBRARIES):
            return f"{frame.function_name}, {frame.file_name}:{frame.line_num}"
    return ""
