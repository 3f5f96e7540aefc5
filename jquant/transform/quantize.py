"""Converts a function to few bits: its weights are packed, and its sites compute with integers, or with floats."""

import contextlib
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp

from jquant import jaxprs
from jquant.arguments.statics import boolean
from jquant.calibration import Range
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.jaxprs import Program
from jquant.lowering import recording
from jquant.placement import explain_array_errors_as, raise_explained
from jquant.transform.formats.stored_weights import Stored
from jquant.transform.observations import statistics
from jquant.transform.observations.static_inputs import static_inputs
from jquant.transform.program import same_sites, traced
from jquant.transform.program.parameters import Parameters, abstract, flattened, require_arrays
from jquant.transform.program.plan import Plan
from jquant.transform.program.traced import Analysis, Function
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.recipes.recipe import Recipe
from jquant.transform.rewriting import rewrite, site_functions
from jquant.transform.weights import packing, quantized_parameters
from jquant.transform.weights.packing import Load

_NAME = "transform.quantize"


@explain_array_errors_as(_NAME, TransformError)
def quantize(
    apply: Callable[..., Any],
    params: Any,
    recipe: Recipe,
    *inputs: Any,
    calibration: Mapping[str, Any] | None = None,
    load: Load | None = None,
    donate: bool = False,
    progress: bool = False,
    derivative: str | None = None,
) -> tuple["QuantizedFunction", dict[str, dict[str, Any]]]:
    """Converts a function to few bits: its products, convolutions and embeddings that have parameters as weights.

    Each site computes a composition of public operators, and equals that composition bit for bit. `quantize_linear` or
    `dynamic_quantize_linear` quantizes the input, and `matmul_integer_to_float`, `block_scaled_matmul` or
    `convolution_integer_to_float` multiplies it by the packed weights. With ``"FLOAT"`` activations, `matmul_n_bits`
    multiplies by integers; for convolutions, and for weights that are floats, a site computes the function's own product,
    with weights from `dequantize_linear`, `mx_dequantize` or `nvfp4_dequantize`. These are sums of floats, which a compiled
    program may add in another order. Everything else is computed as before, in the types that the function has.

    Args:
      apply: a pure function of the parameters and of inputs. Bind static arguments with `functools.partial`.
      params: a pytree of arrays, or of `jax.ShapeDtypeStruct`. Then the quantized parameters are `jax.ShapeDtypeStruct`
        as well, and no calibration is needed: they are the target for restoring a checkpoint of quantized parameters in a
        program that does not have the float ones. With `load`, they are the types of what it returns.
      recipe: what is quantized, and how: `static_int8`, `dynamic_int8`, `weight_only_int4` or another of this module, or a
        `Recipe` of your own.
      inputs: the inputs of the function, by position: arrays, or `jax.ShapeDtypeStruct`. They are examples: the
        quantized function takes inputs of other shapes as well, as long as these lead to the same sites, or to some of them,
        with weights of the same values.
      calibration: what `calibrate` returned, for inputs of these sizes or of others. Static inputs need it, and schemes with
        GPTQ or smoothing.
      load: a function that returns the parameter of a name, such as ``"blocks/up"``, where `params` has types: a model
        whose float form does not fit into memory is quantized one weight after the other.
      donate: whether arrays of JAX among `params` are deleted as soon as they are packed, so that the float and the
        quantized model are never in memory together. Parameters that stay float are not deleted.
      progress: whether to show a progress bar, which needs tqdm.
      derivative: ``"STRAIGHT_THROUGH"``, or None: then differentiating an integer product raises. It changes no value.

    Returns:
      The quantized function, to be called as ``quantized_apply(quantized_params, *inputs)``, and its parameters: a dict with
      the keys ``"sites"`` (the numbers and scales of weights), ``"inputs"`` (the scales and zero points of static inputs)
      and ``"float"`` (the parameters that stay float), each a dict by name. The function is pure and hashable, and works
      under `jax.jit`, `jax.vmap`, `jax.export` and the rest.

      Its straight-through derivative takes the quantized parameters as they are, to train what is around them: inputs,
      parameters that stay float, or `adapters`. In its input, each site has the derivative of the function's own product
      by the dequantized weights, which are dequantized anew for it, one site at a time. Rounding has derivative 1, except
      outside the range of a static input, where it has 0. The scales of weights and inputs have derivative 0; packed
      integers have none (``jax.grad(..., allow_int=True)`` gives them zeros of type float0). A `jax.custom_vjp` or
      `jax.custom_jvp` around a site loses its rule: what it computes is differentiated instead.

    Raises:
      TransformError: a function without a site, or `params` without an array; a pattern of the recipe that matches no
        site; a static input without a range, or with one that is not finite, or whose maximum is below its minimum;
        weights that are too large for the type of their scales; a calibration for inputs of other sizes, where it is
        not clear which use of a weight a range belongs to; an unknown derivative. Weights that are too small for it,
        NaN or infinite are warnings, with the names of the parameters.
      TransformTypeError: an argument of the wrong type, or a leaf of `params` or of the inputs that is not an array. What
        `apply` raises is not changed, but for a note of what it was called with.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     return jax.nn.relu(x @ params["hidden"]) @ params["head"]
      >>> keys = jax.random.split(jax.random.key(0), 3)
      >>> params = {"hidden": jax.random.normal(keys[0], (32, 64)), "head": jax.random.normal(keys[1], (64, 10))}
      >>> x = jax.random.normal(keys[2], (8, 32))
      >>> quantized_apply, quantized_params = transform.quantize(apply, params, transform.dynamic_int8, x)
      >>> quantized_params["sites"]["hidden"]["values"]
      PackedMatrix(int8[32,64])
      >>> error = jax.jit(quantized_apply)(quantized_params, x) - apply(params, x)
      >>> bool(jnp.abs(error).max() < 0.05 * jnp.abs(apply(params, x)).max())
      True
    """
    function = traced.checked(_NAME, apply, recipe)
    parameters = flattened(_NAME, params, allow_types=True)
    with as_transform_errors():
        donate, progress = boolean(_NAME, "donate", donate), boolean(_NAME, "progress", progress)
    if load is not None and not callable(load):
        raise TransformTypeError(f"{_NAME}: load is {shown(load)}; it must be a function that returns a parameter by name")
    functions = site_functions.with_derivative(_NAME, derivative)
    if load is None and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in parameters.leaves):
        return of_types(function, parameters, inputs, functions)
    analysis = _analyzed(function, parameters, inputs)
    plan = analysis.plan
    static, observed = static_inputs(_NAME, plan, calibration), statistics.of_sites(_NAME, plan, calibration)
    quantized_apply, _, kept = _quantized(function, parameters, inputs, functions, analysis, static, observed)
    source = packing.Source(_NAME, parameters, load, donate)
    packed, floats = source.pack(plan, observed, kept, progress)
    return quantized_apply, {"sites": packed, "inputs": static, "float": floats}


def of_types(
    function: Function, parameters: Parameters, inputs: tuple[Any, ...], functions: rewrite.Functions
) -> tuple["QuantizedFunction", dict[str, dict[str, Any]]]:
    """The quantized function, and the types of its parameters, from the types of the float ones."""
    analysis = _analyzed(function, parameters, inputs)
    plan = analysis.plan
    placeholders = {site.name: _placeholder(plan.sizes(site)) for site in plan.inputs()}
    static = jax.eval_shape(lambda: static_inputs(function.name, plan, placeholders))
    observed = statistics.placeholders(plan)
    quantized_apply, packed, kept = _quantized(function, parameters, inputs, functions, analysis, static, observed)
    floats = {parameters.names[number]: parameters.leaves[number] for number in kept}
    return quantized_apply, {"sites": packed, "inputs": static, "float": floats}


def _analyzed(function: Function, parameters: Parameters, inputs: tuple[Any, ...]) -> Analysis:
    """A function with at least one site."""
    analysis = traced.analyze(function, parameters, inputs)
    traced.require_sites(function, analysis.plan)
    return analysis


def _quantized(
    function: Function,
    parameters: Parameters,
    inputs: tuple[Any, ...],
    functions: rewrite.Functions,
    analysis: Analysis,
    static: Mapping[str, Any],
    observed: Mapping[str, Any],
) -> tuple["QuantizedFunction", dict[str, Stored], list[int]]:
    """The quantized function, the types of what its sites store, and the numbers of the parameters that stay float."""
    types = list(map(abstract, parameters.leaves))
    packed = jax.eval_shape(functools.partial(packing.pack, analysis.plan), types, observed)
    quantized_apply = QuantizedFunction(function, parameters, analysis.plan, packed, functions, _dtypes(inputs))
    resources = rewrite.Resources(packed, static)
    rewritten = quantized_apply._rewritten(analysis, resources, inputs)
    quantized_apply._remember(resources, inputs, rewritten)
    return quantized_apply, packed, rewritten.kept


def _placeholder(sizes: tuple[int, ...]) -> Range:
    """A range of the right shape, for scales that are yet to be restored."""
    return Range(jnp.zeros(sizes), jnp.ones(sizes))


@dataclasses.dataclass(frozen=True)
class _Rewritten:
    """The quantized program for inputs of certain types.

    Attributes:
      program: a function of those leaves of the quantized parameters and of the inputs that it reads.
      used: for each leaf of the quantized parameters and of the inputs, whether the program reads it.
      kept: the indices of the parameters that stay float.
      outputs: the structure of the outputs.
    """

    program: Program
    used: list[bool]
    kept: list[int]
    outputs: Any


class QuantizedFunction:
    """A function of quantized parameters and inputs, as `quantize` returns. It is traced once for each input shape,
    and for each of JAX's settings around a call, such as a matmul precision.

    The weights of a site in blocks may be replaced by others of the same shape, such as those of a checkpoint, also with
    other blocks: ``{"values": weight.matrix}`` of a `jquant.checkpoints.PackedWeight`, with its ``"permutation"`` if it has
    one.
    """

    def __init__(
        self,
        function: Function,
        parameters: Parameters,
        plan: Plan,
        stored: Mapping[str, Stored],
        functions: rewrite.Functions,
        dtypes: str,
    ):
        self._function, self._plan, self._stored, self._functions = function, plan, stored, functions
        self._dtypes = dtypes
        self._parameters = parameters._replace(leaves=list(map(abstract, parameters.leaves)))
        self._programs: weakref.WeakKeyDictionary[Any, dict[Any, _Rewritten]] = weakref.WeakKeyDictionary()  # by context
        self.__name__ = f"quantized_{getattr(function.apply, '__name__', 'apply')}"
        self.__wrapped__ = function.apply  # whose inputs and outputs have the same names
        with contextlib.suppress(TypeError, ValueError):  # it has none
            self.__signature__ = inspect.signature(function.apply)

    def __repr__(self) -> str:
        count = len(self._plan.sites) + len(self._plan.products)
        return f"<quantized function of {getattr(self._function.apply, '__name__', 'apply')}: {count} sites>"

    def __call__(self, params: Mapping[str, Mapping[str, Any]], /, *inputs: Any, **keywords: Any) -> Any:
        if keywords:
            names = ", ".join(keywords)
            raise TransformTypeError(f"{self.__name__}: the inputs are passed by position, but {names} by keyword")
        try:
            return self._called(params, inputs, {})
        except (RuntimeError, ValueError, TypeError) as error:
            self._explain({"params": params, "inputs": inputs}, error)
            raise

    def _explain(self, arguments: Mapping[str, Any], error: Exception) -> None:
        """Raises an error that names what is no array, has been deleted or is elsewhere, if a call raised for that."""
        raise_explained(self.__name__, arguments, error, TransformError)
        if isinstance(error, TypeError) and not isinstance(error, TransformError):
            for name, tree in arguments.items():
                require_arrays(f"{self.__name__}: {name}", tree)

    def _with(self, functions: rewrite.Functions) -> "QuantizedFunction":
        """The function of the same quantized parameters that computes something else at its sites."""
        return QuantizedFunction(self._function, self._parameters, self._plan, self._stored, functions, self._dtypes)

    def _called(self, params: Mapping[str, Mapping[str, Any]], inputs: tuple[Any, ...], adapters: Mapping[str, Any]) -> Any:
        packed, static, floats = self._parts(params)
        require_arrays(f"{self.__name__}: inputs", inputs)
        resources = rewrite.Resources(packed, static, adapters)
        types = self._types(resources, inputs)
        rewritten = self._programs.get(jaxprs.context(), {}).get(types)
        if rewritten is None:
            self._require_types(self.__name__, packed, static, floats)
            analysis = traced.analyze(self._function._replace(name=self.__name__), self._parameters, inputs)
            analysis = analysis._replace(plan=self._same_sites(analysis.plan, inputs))
            rewritten = self._rewritten(analysis, resources, inputs)
            self._remember(resources, inputs, rewritten)
        kept = [self._float(number, floats, inputs) for number in rewritten.kept]
        leaves = jax.tree.leaves((resources, kept, inputs))
        used = [leaf for leaf, is_used in zip(leaves, rewritten.used, strict=True) if is_used]
        return jax.tree.unflatten(rewritten.outputs, jaxprs.evaluate(rewritten.program, *used))

    def _parts(self, params: Any) -> quantized_parameters.Parts:
        """The quantized parameters, checked to be those of this function."""
        return quantized_parameters.parts(self.__name__, self._plan, params)

    def _require_parameters(self, name: str, params: Any) -> None:
        """Asserts for the function `name` that these are quantized parameters of this function, and no others."""
        packed, static, floats = quantized_parameters.parts(name, self._plan, params)
        if others := floats.keys() - set(self._parameters.names):
            raise TransformError(f"{name}: apply has no parameters {', '.join(sorted(map(str, others)))}")
        self._require_types(name, packed, static, floats)

    def _require_types(
        self, name: str, packed: Mapping[str, Stored], static: Mapping[str, Any], floats: Mapping[str, Any]
    ) -> None:
        """Asserts that sites, static inputs and parameters have arrays of their types."""
        quantized_parameters.require_stored(name, self._plan, self._stored, packed)
        quantized_parameters.require_static(name, self._plan, static)
        for parameter, wanted in zip(self._parameters.names, self._parameters.leaves, strict=True):
            if parameter in floats:
                quantized_parameters.require_float(name, parameter, floats[parameter], wanted)

    def _float(self, number: int, floats: Mapping[str, Any], inputs: tuple[Any, ...]) -> Any:
        """A parameter that stays float, by its number."""
        name = self._parameters.names[number]
        if name not in floats:
            raise TransformError(
                f"{self.__name__}: for inputs of these types, apply reads {name} unquantized, and "
                f"the quantized parameters do not contain it.{self._other_dtypes(inputs)}"
            )
        quantized_parameters.require_float(self.__name__, name, floats[name], self._parameters.leaves[number])
        return floats[name]

    def _types(self, resources: rewrite.Resources, inputs: tuple[Any, ...]) -> Hashable:
        """What a program is traced for."""
        try:
            return jaxprs.input_types((resources, inputs))
        except (TypeError, ValueError, OverflowError):
            for part, tree in (("sites", resources.stored), ("inputs", resources.static)):
                require_arrays(f"{self.__name__}: params[{part!r}]", tree, allow_types=True)
            raise

    def _remember(self, resources: rewrite.Resources, inputs: tuple[Any, ...], rewritten: _Rewritten) -> None:
        """Keeps the program for weights and inputs of these types, unless it belongs to an enclosing trace."""
        if not any(isinstance(constant, jax.core.Tracer) for constant in rewritten.program.constants):
            self._programs.setdefault(jaxprs.context(), {})[self._types(resources, inputs)] = rewritten

    def _rewritten(self, analysis: Analysis, resources: rewrite.Resources, inputs: tuple[Any, ...]) -> _Rewritten:
        """The program with quantized sites, without the parameters that it does not need."""

        def function(resources: rewrite.Resources, floats: list[Any], inputs: tuple[Any, ...]) -> list[Any]:
            leaves = [*floats, *jax.tree.leaves(inputs)]
            return rewrite.run(analysis.plan, self._functions, leaves, resources)[0]

        floats = self._parameters.leaves
        program, _ = jaxprs.trace(function, resources, floats, inputs)
        program, used = jaxprs.without_unused_inputs(program)
        start = len(jax.tree.leaves(resources))
        end = start + len(floats)
        kept = [number for number, is_used in enumerate(used[start:end]) if is_used]
        return _Rewritten(
            program=program,
            used=[*used[:start], *(True for _ in kept), *used[end:]],
            kept=kept,
            outputs=jax.tree.structure(analysis.outputs),
        )

    def _same_sites(self, plan: Plan, inputs: tuple[Any, ...]) -> Plan:
        """The sites of a program for other inputs, by the names of those that the quantized parameters were made for."""
        fitted, names = same_sites.fitted(self._plan, plan)
        if names and recording.is_active():
            fitted, names = self._same_recorded_sites(plan, inputs, names)
        if not names:
            return fitted
        differing, ours = ", ".join(names), f"{self.__name__}: for inputs of these types, apply has different"
        _, names = same_sites.fitted(self._plan, plan, weights=False)
        if not names:
            cause = "Do they depend on a size of its input, or on JAX's settings? Quantize it for these inputs, too"
            raise TransformError(f"{ours} weights from those that are packed: {differing}. {cause}.")
        cause = self._other_dtypes(inputs) or " Does it branch in Python on a size of its input?"
        raise TransformError(f"{ours} sites from those of the quantized parameters: {differing}.{cause}")

    def _same_recorded_sites(self, plan: Plan, inputs: tuple[Any, ...], names: list[str]) -> tuple[Plan, list[str]]:
        """`_same_sites` where calls are recorded, so that weights are formulas: they are compared as compilers get them."""
        with recording.inactive():
            compiled = traced.analyze(self._function._replace(name=self.__name__), self._parameters, inputs).plan
        differ = same_sites.fitted(self._plan, compiled)[1]
        return (plan, names) if differ else same_sites.fitted(self._plan, plan, weights=False)

    def _other_dtypes(self, inputs: tuple[Any, ...]) -> str:
        """A sentence about dtypes other than those of the inputs that were quantized for; "" if there are none."""
        dtypes = _dtypes(inputs)
        return "" if dtypes == self._dtypes else f" The inputs are {dtypes}; those of quantize were {self._dtypes}."


def _dtypes(inputs: tuple[Any, ...]) -> str:
    return ", ".join(str(jax.typeof(leaf).dtype) for leaf in jax.tree.leaves(inputs))
