"""Writes a function of JAX as an ONNX model."""

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.core
import numpy as np
import onnx

from jquant import jaxprs
from jquant.errors import ModelError, shown
from jquant.lowering import recording
from jquant.onnx import nodes as _nodes  # noqa: F401  # importing them fills the table of writers
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, MICROSOFT
from jquant.onnx.writing import finish, kernel_types, refused, signature, walk, wide
from jquant.onnx.writing import formulas as _formulas  # noqa: F401  # importing them fills the table of writers
from jquant.onnx.writing import imported as _imported  # noqa: F401  # importing it adds the writer of nodes of files
from jquant.onnx.writing import primitives as _primitives  # noqa: F401  # importing them fills the table of primitives
from jquant.onnx.writing.builder import Builder, OlderSetNeeded, OtherSetNeeded, Shared
from jquant.onnx.writing.signature import Leaf
from jquant.onnx.writing.tensor import Tensor, is_key, known

_OLDEST = 13
_DOMAINS = sorted({MICROSOFT, *(schema.domain for schema in onnx.defs.get_all_schemas())})
_FORMS = ("exact", "qdq")
_RANDOM_KEY = "is a random key, which a model cannot take: make it a constant of the function, or a parameter"
Form = Literal["exact", "qdq"]


def export(
    function: Callable[..., Any],
    *arguments: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
    domains: Sequence[str] = (MICROSOFT,),
    form: Form = "exact",
    unroll: bool = True,
) -> onnx.ModelProto:
    """Writes a function of jquant's operators and of JAX as an ONNX model, whose integers equal those of the function.

    The model is a graph of what the function computes for arguments of these types. An operator of jquant becomes the node
    that says the same, or, where ONNX has none, the steps of its formula, each of which rounds once::

        model(inputs) = function(parameters, *inputs)

    In onnxruntime, the integers of each node are equal, given equal operands. So are floats, except for the last bits of
    sums and of functions such as exp, which every library computes in its own way; what follows from these may differ, too.

    What may surprise:

    * The function is traced once, as by `jax.jit`: a decision of Python, such as ``if training:``, is fixed in the model.
      Fix an argument that is no array with `functools.partial`.
    * What follows from parameters and constants alone is computed now, and stored.
    * Sizes are fixed, except for symbolic ones: with ``(batch,) = jax.export.symbolic_shape("batch")``, an argument
      ``jax.ShapeDtypeStruct((batch, 64), jnp.float32)`` becomes an input whose first size is open, and called "batch". Sizes
      inside may be expressions, such as ``2 * batch``. Symbolic sizes of several arguments must come from one call, or from
      one scope. Whether inputs fit the constraints of a scope is not checked.
    * `jax.lax.scan`, and `jax.lax.fori_loop` with fixed bounds, are written step by step, which onnxruntime runs faster: a
      thousand steps are a thousand copies. `jax.lax.while_loop` becomes Loop, and `jax.lax.cond` If.
    * Indices out of bounds: ``table[tokens]`` is a promise that there are none. If there are, JAX reads the nearest element,
      and onnxruntime raises. `jnp.take`, and ``mode=`` of ``at``, are written as JAX defines them. ``x.at[i].set(y)`` leaves
      out what is out of bounds, which costs two copies of `x` if `i` has several elements; ``mode="promise_in_bounds"``
      saves them. If one element is set several times, which value stays is open, in JAX as in ONNX.
    * A model of more than 2 GB is saved by ``onnx.save(model, path, save_as_external_data=True)``.

    Args:
      function: any function of arrays, jitted or not.
      arguments: the arguments by position: arrays, numbers, types (`jax.ShapeDtypeStruct`), or pytrees of them. The first of
        several arguments, if it is a tree of arrays (rather than one array, or types), holds the parameters: they become
        initializers, which are named by their paths. All others become inputs of the same types, which are named by the
        function's own parameters, and by their paths in these.
      input_names: the names of the inputs, in the order of the leaves of the arguments.
      output_names: the names of the outputs, in the order of the leaves of the result (a dict is in the order of its keys).
        By default, the keys of a dict; "output" for one array; or "output_0", "output_1" and so on.
      opset: the version of ONNX's own operator set, from 13 on. By default the lowest that has all nodes. Below 21, integers
        of 4 bits take a byte each, of which a warning tells.
      domains: the domains of nodes that may be used beside ONNX's own. The default is that of onnxruntime; ``()`` is for
        other engines.
      form: ``"exact"`` writes what the optimizations of onnxruntime leave as it is. ``"qdq"`` writes QuantizeLinear and
        DequantizeLinear around float operators, and the operators on quantized tensors, which engines fuse: equal without
        optimizations.
      unroll: whether a `jax.lax.scan` is written step by step; otherwise it becomes Scan, which is smaller.

    Returns:
      The model. The same function and arguments give the same bytes.

    Raises:
      ModelError: what a model cannot express, all in one error: callbacks and other effects, random numbers of a key that is
        not known, float64, complex numbers, several devices, kernels; a primitive without a rule; an argument that is no
        array, is being traced, as inside `jax.jit`, or has a size such as "batch" or -1; an operator set that lacks a node;
        names that do not fit. What the function itself raises is not changed.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> def apply(params, x):
      ...     return {"logits": jax.nn.relu(x @ params["hidden"]) @ params["head"]}
      >>> params = {"hidden": jnp.ones((4, 8)), "head": jnp.ones((8, 2))}
      >>> (batch,) = jax.export.symbolic_shape("batch")
      >>> model = jquant.onnx.export(apply, params, jax.ShapeDtypeStruct((batch, 4), jnp.float32))
      >>> [value.name for value in (*model.graph.input, *model.graph.output)]
      ['x', 'logits']
      >>> [node.op_type for node in model.graph.node]
      ['MatMul', 'Max', 'MatMul']
    """
    _check(function, opset, domains, form, unroll)
    leaves, parameters = signature.of_arguments(function, arguments), signature.parameters(arguments)
    _check_arguments(leaves, parameters)
    with recording.active():
        program, result = jaxprs.trace(function, *arguments)
    if any(isinstance(constant, jax.core.Tracer) for constant in program.constants):
        raise ModelError(
            "export: the function holds an array that is being traced; call export outside of jax.jit and the like"
        )
    outputs = signature.of_result(function, result)
    if not outputs:
        raise ModelError("export: the function returns no array")
    input_leaves = leaves[parameters:]
    _check_names(input_names, [leaf.name for leaf in input_leaves], output_names, [leaf.name for leaf in outputs])
    version, older, refused = opset or _OLDEST, None, None
    while True:
        shared = Shared(
            {**dict.fromkeys(domains, 1), DEFAULT_DOMAIN: version}, domains, form, unroll, is_fixed=opset is not None
        )
        named_inputs, named_outputs = _reserved(shared, input_leaves, outputs, input_names, output_names)
        try:
            name = signature.name_of(function)
            written = _written(shared, program, leaves[:parameters], named_inputs, named_outputs, name)
        except OtherSetNeeded as needed:
            if needed.domain != DEFAULT_DOMAIN:
                raise ModelError(f"export: {needed}") from None
            if opset is not None and refused is None:
                refused = needed
            if isinstance(needed, OlderSetNeeded):
                older = needed
            elif older is not None and needed.version > older.version:
                advice = "onnx.version_converter makes a file of a newer version of an older one"
                raise ModelError(f"export: {needed}, and {older}; {advice}") from None
            version = needed.version
            continue
        if refused is None:
            _warn_of_widened(shared, written)
            return written
        all_nodes = f"; all nodes need version {version}" if version != refused.version else ""
        raise ModelError(f"export: opset is {opset}, but {refused}{all_nodes}")


def _warn_of_widened(shared: Shared, written: onnx.ModelProto) -> None:
    if shared.widened:
        size, narrow = written.ByteSize(), written.ByteSize() - sum(shared.widened.values())
        needed = f"opset={kernel_types.SINCE_INT4} has them in {narrow:,} bytes"
        message = f"export: integers of 4 bits are written in 8, in a model of {size:,} bytes; {needed}"
        warnings.warn(message, stacklevel=3)


def _check(function: Any, opset: Any, domains: Any, form: Any, unroll: Any) -> None:
    if not callable(function):
        raise ModelError(f"export: function is {shown(function)}; it must be a function of arrays")
    newest = onnx.defs.onnx_opset_version()
    is_integer = isinstance(opset, int) and not isinstance(opset, bool)
    if opset is not None and not (is_integer and _OLDEST <= opset <= newest):
        raise ModelError(f"export: opset is {shown(opset)}; it must be an integer from {_OLDEST} to {newest}")
    is_sequence = isinstance(domains, list | tuple | set | frozenset)
    if not is_sequence or not all(domain in _DOMAINS for domain in domains):
        raise ModelError(f"export: domains is {shown(domains)}; it may have none but {', '.join(map(repr, _DOMAINS))}")
    if form not in _FORMS:
        raise ModelError(f"export: form is {shown(form)}; it must be 'exact' or 'qdq'")
    if not isinstance(unroll, bool):
        raise ModelError(f"export: unroll is {shown(unroll)}; it must be True or False")


def _check_arguments(leaves: Sequence[Leaf], parameters: int) -> None:
    """Raises one error for all leaves of the arguments that no model can take; the first ones are parameters."""
    wrong = []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf.value, jax.core.Tracer):
            wrong.append(f"{leaf.name} is being traced; call export outside of jax.jit and the like")
            continue
        try:
            type = leaf.value if isinstance(leaf.value, jax.ShapeDtypeStruct) else jax.typeof(leaf.value)
        except TypeError:
            wrong.append(f"{leaf.name} is {shown(leaf.value)}; it must be an array, a number or a jax.ShapeDtypeStruct")
            continue
        sizes = [size for size in type.shape if not _is_size(size)]
        if sizes:
            names = ", ".join(dict.fromkeys(size if _is_name(size) else "batch" for size in sizes))
            advice = f'for an open size, pass one of jax.export.symbolic_shape("{names}")'
            wrong.append(f"{leaf.name} has the size {' and '.join(map(repr, sizes))}; {advice}")
            continue
        if is_key(type):
            if number >= parameters:  # what follows from a known key is known
                wrong.append(f"{leaf.name} {_RANDOM_KEY}")
            continue
        try:
            refused.check_type(type)
        except ModelError as error:
            wrong.append(f"{leaf.name}: {error}")
    if wrong:
        raise ModelError("export: the arguments are not supported:" + "".join(f"\n  {line}" for line in wrong))


def _is_size(size: Any) -> bool:
    """Whether something in a shape is a size; a `jax.ShapeDtypeStruct` takes anything."""
    if jax.export.is_symbolic_dim(size):
        return True
    try:
        return operator.index(size) >= 0
    except TypeError:
        return False


def _is_name(size: Any) -> bool:
    return isinstance(size, str) and size.isidentifier() and size.isascii() and size[0].isalpha()


def _check_names(
    input_names: Sequence[str] | None, inputs: Sequence[str], output_names: Sequence[str] | None, outputs: Sequence[str]
) -> None:
    for what, given, default in (("input_names", input_names, inputs), ("output_names", output_names, outputs)):
        if given is None:
            continue
        if not isinstance(given, list | tuple) or not all(isinstance(name, str) and name for name in given):
            raise ModelError(f"export: {what} is {shown(given)}; it must be a sequence of names")
        if len(given) != len(default):
            raise ModelError(f"export: {what} has {len(given)} names, but there are {len(default)}: {', '.join(default)}")
    of_inputs = list(inputs if input_names is None else input_names)
    of_outputs = [] if output_names is None else list(output_names)
    given = [*([] if input_names is None else input_names), *of_outputs]
    repeated = [name for name in dict.fromkeys(given) if [*of_inputs, *of_outputs].count(name) > 1]
    if repeated:
        raise ModelError(f"export: the name {repeated[0]!r} is given to several inputs or outputs")


def _reserved(
    shared: Shared,
    inputs: Sequence[Leaf],
    outputs: Sequence[Leaf],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> tuple[list[Leaf], list[Leaf]]:
    """Inputs and outputs with names that nothing else has: first those that were given, which stay as they are."""
    reserve = shared.names.reserve
    given = [None if names is None else list(map(reserve, names)) for names in (input_names, output_names)]
    of_inputs, of_outputs = (
        [
            leaf._replace(name=name)
            for leaf, name in zip(leaves, names or [reserve(leaf.name) for leaf in leaves], strict=True)
        ]
        for names, leaves in zip(given, (inputs, outputs), strict=True)
    )
    return of_inputs, of_outputs


def _written(
    shared: Shared, program: Any, parameters: Sequence[Leaf], inputs: Sequence[Leaf], outputs: Sequence[Leaf], name: str
) -> onnx.ModelProto:
    builder = Builder(shared)
    avals = [variable.aval for variable in program.jaxpr.invars]
    values = [_parameter(leaf, aval) for leaf, aval in zip(parameters, avals, strict=False)]
    declared = []
    for leaf, aval in zip(inputs, avals[len(parameters) :], strict=True):
        value = Tensor(signature.full_type(leaf, aval.dtype), tuple(aval.shape), name=leaf.name)
        for dimension, size in enumerate(aval.shape):
            if not isinstance(size, int):
                shared.sizes.setdefault(str(size), (leaf.name, dimension))
        declared.append(value)
        values.append(wide.narrowed(builder, value, np.dtype(aval.dtype)))
    results = walk.write(builder, program, values)
    for leaf, result in zip(outputs, results, strict=True):
        if is_key(result):
            shared.unsupported[f"the output {leaf.name}: {refused.RANDOM}"] = None
    if shared.unsupported:
        lines = "".join(f"\n  {line}" for line in shared.unsupported)
        raise ModelError(f"export: the function is not supported:{lines}")
    results = [_in_full(builder, leaf, result) for leaf, result in zip(outputs, results, strict=True)]
    names = signature.in_order(outputs, [leaf.name for leaf in outputs])
    return finish.model(builder, name, signature.in_order(inputs, declared), signature.in_order(outputs, results), names)


def _parameter(leaf: Leaf, aval: Any) -> Tensor:
    return known(leaf.value if is_key(leaf.value) else np.asarray(leaf.value, aval.dtype), leaf.name)


def _in_full(builder: Builder, leaf: Leaf, result: Tensor) -> Tensor:
    """A result in the type that the model declares for it."""
    dtype = signature.full_type(leaf, result.dtype)
    return result if dtype == result.dtype else wide.in_full(builder, wide.widened(builder, result, dtype))
