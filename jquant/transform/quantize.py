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
from jquant.transform import layers, packing, rewrite, same_sites, site_functions, statistics, traced, weight_formats
from jquant.transform.checks import as_transform_errors
from jquant.transform.packing import Load
from jquant.transform.parameters import Parameters, abstract, described, flattened
from jquant.transform.plan import Plan
from jquant.transform.prepared_weights import SMOOTHING
from jquant.transform.recipe import Recipe
from jquant.transform.static_inputs import static_inputs
from jquant.transform.stored_weights import Stored
from jquant.transform.traced import Analysis, Function

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
      calibration: what `calibrate` returned. Static inputs need it, and schemes with GPTQ or smoothing.
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
        weights that are too large for the type of their scales; an unknown derivative. Weights that are too small for it,
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
    analysis = traced.analyze(function, parameters, inputs)
    plan = analysis.plan
    traced.require_sites(function, plan)
    has_types = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in parameters.leaves)
    is_abstract = has_types and load is None
    if is_abstract:
        placeholders = {site.name: _placeholder(plan.sizes(site)) for site in plan.inputs()}
        static = jax.eval_shape(lambda: static_inputs(_NAME, plan, placeholders))
        observed = statistics.placeholders(plan)
    else:
        static, observed = static_inputs(_NAME, plan, calibration), statistics.of_sites(_NAME, plan, calibration)
    quantized_apply = QuantizedFunction(function, parameters, plan, functions, _dtypes(inputs))
    types = list(map(abstract, parameters.leaves))
    packed = jax.eval_shape(functools.partial(packing.pack, plan), types, observed)
    resources = rewrite.Resources(packed, static)
    rewritten = quantized_apply._rewritten(analysis, resources, inputs)
    quantized_apply._remember(resources, inputs, rewritten)
    if is_abstract:
        floats = {parameters.names[number]: parameters.leaves[number] for number in rewritten.kept}
    else:
        source = packing.Source(_NAME, parameters, load, donate)
        packed, floats = source.pack(plan, observed, rewritten.kept, progress)
    return quantized_apply, {"sites": packed, "inputs": static, "float": floats}


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
        functions: rewrite.Functions,
        dtypes: str,
    ):
        self._function, self._plan, self._functions = function, plan, functions
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
        except (RuntimeError, ValueError) as error:
            raise_explained(self.__name__, {"params": params, "inputs": inputs}, error, TransformError)
            raise

    def _with(self, functions: rewrite.Functions) -> "QuantizedFunction":
        """The function of the same quantized parameters that computes something else at its sites."""
        return QuantizedFunction(self._function, self._parameters, self._plan, functions, self._dtypes)

    def _called(self, params: Mapping[str, Mapping[str, Any]], inputs: tuple[Any, ...], adapters: Mapping[str, Any]) -> Any:
        packed, static, floats = self._parts(params)
        traced.require_arrays(self.__name__, inputs)
        resources = rewrite.Resources(packed, static, adapters)
        rewritten = self._programs.get(jaxprs.context(), {}).get(_types(resources, inputs))
        if rewritten is None:
            self._require_matrices(packed)
            analysis = traced.analyze(self._function._replace(name=self.__name__), self._parameters, inputs)
            analysis = analysis._replace(plan=self._same_sites(analysis.plan, inputs))
            rewritten = self._rewritten(analysis, resources, inputs)
            self._remember(resources, inputs, rewritten)
        names = [self._parameters.names[number] for number in rewritten.kept]
        missing = [name for name in names if name not in floats]
        if missing:
            raise TransformError(
                f"{self.__name__}: for inputs of these types, apply reads {missing[0]} unquantized, and "
                f"the quantized parameters do not contain it.{self._other_dtypes(inputs)}"
            )
        leaves = jax.tree.leaves((resources, [floats[name] for name in names], inputs))
        used = [leaf for leaf, is_used in zip(leaves, rewritten.used, strict=True) if is_used]
        return jax.tree.unflatten(rewritten.outputs, jaxprs.evaluate(rewritten.program, *used))

    def _parts(self, params: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The quantized parameters, checked to be those of this function."""
        if not isinstance(params, Mapping) or set(params) != {"sites", "inputs", "float"}:
            raise TransformTypeError(
                f"{self.__name__}: params is {described(params)}; it must be the quantized parameters, which "
                "transform.quantize returned with the function, or restored ones"
            )
        packed, static, floats = (dict(params[part]) for part in ("sites", "inputs", "float"))
        for part, trees, sites in (("sites", packed, self._plan.stored()), ("inputs", static, self._plan.inputs())):
            differing = trees.keys() ^ {site.name for site in sites}
            if differing:
                names = ", ".join(sorted(differing))
                raise TransformError(
                    f"{self.__name__}: the {part} of the quantized parameters do not belong to this function: {names}"
                )
        return packed, static, floats

    def _require_matrices(self, packed: Mapping[str, Stored]) -> None:
        """Asserts that each site has weights of its form and shape, which may be those of a checkpoint."""
        for site in self._plan.stored():
            if site.storage.filter is not None:
                continue
            shape = (*self._plan.sizes(site), *layers.matrix_sizes(site.storage, site.weights.shape))
            obstacle = weight_formats.why_not_stored(site.storage.format, packed[site.name], shape, optional=SMOOTHING)
            if obstacle is not None:
                raise TransformError(f"{self.__name__}: the weights of {site.name}: {obstacle}")

    def _remember(self, resources: rewrite.Resources, inputs: tuple[Any, ...], rewritten: _Rewritten) -> None:
        """Keeps the program for weights and inputs of these types, unless it belongs to an enclosing trace."""
        if not any(isinstance(constant, jax.core.Tracer) for constant in rewritten.program.constants):
            self._programs.setdefault(jaxprs.context(), {})[_types(resources, inputs)] = rewritten

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
        """The same in a program that records calls, whose weights are formulas: they are compared as compilers get them."""
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


def _types(resources: rewrite.Resources, inputs: tuple[Any, ...]) -> Hashable:
    """What a program is traced for: static inputs have scales of the same types in all calls."""
    return jaxprs.input_types((resources.stored, resources.adapters, inputs))
