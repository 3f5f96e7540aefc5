"""A function in int8: its parameters are packed, its sites are products of integers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jquant.calibration import Range
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.operators.scale_and_zero_point import scale_and_zero_point
from jquant.placement import explain, names_arrays_as
from jquant.pytrees import ScaleZeroPoint
from jquant.transform import compute, jaxprs, rewrite, traced
from jquant.transform.jaxprs import Program
from jquant.transform.layouts import LOOK_UP
from jquant.transform.parameters import Parameters, abstract, described, flattened
from jquant.transform.plan import Plan, Site
from jquant.transform.recipe import Recipe
from jquant.transform.traced import Function, Sited

_NAME = "transform.quantized"


@names_arrays_as(_NAME)
def quantized(
    apply: Callable[..., Any], params: Any, recipe: Recipe, *inputs: Any, ranges: Mapping[str, Range] | None = None
) -> tuple["Int8Function", dict[str, dict[str, Any]]]:
    """Converts a function to int8: its products, convolutions and look-ups that have parameters as weights.

    Each site computes a composition of public operators, and equals that composition bit for bit. `quantize_linear` or
    `dynamic_quantize_linear` quantizes the input, and `matmul_integer_to_float` or `convolution_integer_to_float` multiplies
    it by the packed weights. With ``"FLOAT"`` activations, it is the function's own product, with weights from
    `dequantize_linear`. Everything else is computed as before, in the types that the function has.

    Args:
      apply: a pure function of the parameters and of inputs. Bind static arguments with `functools.partial`.
      params: a pytree of arrays, or of `jax.ShapeDtypeStruct`. From the latter, the int8 parameters are
        `jax.ShapeDtypeStruct` as well, and no ranges are needed: the target for restoring a checkpoint of int8 parameters
        in a program that does not have the float ones.
      recipe: what is quantized, and how: `static_int8`, `dynamic_int8`, `weight_only_int8`, or a `Recipe` of your own.
      inputs: the inputs of the function, by position: arrays, or `jax.ShapeDtypeStruct`. They are examples: the int8
        function takes inputs of other shapes as well, as long as these lead to the same sites.
      ranges: what `calibrate` returned. Only static inputs need it.

    Returns:
      The int8 function, to be called as ``int8_apply(int8_params, *inputs)``, and its parameters: a dict with the keys
      ``"sites"`` (the integers and scales of weights), ``"inputs"`` (the scales and zero points of static inputs) and
      ``"float"`` (the parameters that stay float), each a dict by name. The function is pure and hashable, and works under
      `jax.jit`, `jax.vmap`, `jax.export` and the rest. It has no derivative: differentiating an integer product raises.

    Raises:
      DescriptorError: a function without a site; a pattern that matches no site; a static input without a range, or with
        NaN in its range.
      DescriptorTypeError: an argument of the wrong type, or a leaf of `params` that is not an array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     return jax.nn.relu(x @ params["hidden"]) @ params["head"]
      >>> keys = jax.random.split(jax.random.key(0), 3)
      >>> params = {"hidden": jax.random.normal(keys[0], (32, 64)), "head": jax.random.normal(keys[1], (64, 10))}
      >>> x = jax.random.normal(keys[2], (8, 32))
      >>> int8_apply, int8_params = transform.quantized(apply, params, transform.dynamic_int8, x)
      >>> int8_params["sites"]["hidden"]["values"]
      PackedMatrix(int8[32,64])
      >>> error = jax.jit(int8_apply)(int8_params, x) - apply(params, x)
      >>> bool(jnp.abs(error).max() < 0.05 * jnp.abs(apply(params, x)).max())
      True
    """
    function = traced.checked(_NAME, apply, recipe)
    parameters = flattened(_NAME, params)
    found = traced.sited(function, parameters, inputs)
    traced.require_sites(function, found.plan)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in parameters.leaves):
        any_ranges = {site.name: _any_range(found.plan.sizes(site)) for site in found.plan.inputs()}
        packed = jax.eval_shape(functools.partial(_packed, found.plan), parameters.leaves)
        static = jax.eval_shape(lambda: static_inputs(function, found.plan, any_ranges))
    else:
        packed = _packed(found.plan, parameters.leaves)
        static = static_inputs(function, found.plan, ranges)
    int8_apply = Int8Function(function, parameters, found.plan)
    program = int8_apply._rewritten(found, packed, static, inputs)
    kept = {parameters.names[number]: parameters.leaves[number] for number in program.kept}
    int8_apply._remember(inputs, program)
    return int8_apply, {"sites": packed, "inputs": static, "float": kept}


def _packed(plan: Plan, leaves: list[Any]) -> dict[str, dict[str, Any]]:
    """The weights of sites as they are stored, by the name of the site."""
    weights = traced.weights_of_layers(plan, leaves)
    return {site.name: compute.stored(site.storage, len(site.levels), weights[site.name]) for site in plan.stored()}


def _any_range(sizes: tuple[int, ...]) -> Range:
    """A placeholder with the shape of a range, for scales that are yet to be restored."""
    return Range(jnp.zeros(sizes), jnp.ones(sizes))


def static_inputs(function: Function, plan: Plan, ranges: Mapping[str, Range] | None) -> dict[str, ScaleZeroPoint]:
    """The scales and zero points of static inputs, by the name of the site."""
    sites = plan.inputs()
    if ranges is not None and not isinstance(ranges, Mapping):
        message = f"{function.name}: ranges is {described(ranges)}; it must be a mapping from site names to ranges"
        raise DescriptorTypeError(message)
    if sites and ranges is None:
        message = f"{function.name}: the recipe has static inputs, such as that of {sites[0].name}, and these need ranges"
        raise DescriptorError(f"{message}: transform.calibrate observes them")
    return {site.name: _static_input(function, plan, site, ranges or {}) for site in sites}


def _static_input(function: Function, plan: Plan, site: Site, ranges: Mapping[str, Range]) -> ScaleZeroPoint:
    where = f"{function.name}: ranges[{site.name!r}], of the input of that site,"
    if site.name not in ranges:
        known_names = ", ".join(map(str, ranges)) or "none"
        raise DescriptorError(f"{where} is missing; ranges has: {known_names}. Calibrate with the same recipe")
    given = ranges[site.name]
    try:
        low, high = (np.asarray(bound, np.float32) for bound in given)
    except (TypeError, ValueError) as error:
        raise DescriptorTypeError(f"{where} is {shown(given)}; it must be two numbers, like a calibration.Range") from error
    if low.shape != plan.sizes(site) or high.shape != low.shape:
        raise DescriptorError(f"{where} has shape {low.shape}; it must be {plan.sizes(site)}, one range per layer")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DescriptorError(f"{where} is not finite: from {low} to {high}")
    symmetric = site.scheme.is_symmetric
    return scale_and_zero_point(low, high, site.scheme.activation_type, symmetric=symmetric, narrow_range=symmetric)


@dataclasses.dataclass(frozen=True)
class _Rewritten:
    """The int8 program for inputs of certain types.

    Attributes:
      program: it takes those leaves of the int8 parameters and of the inputs that it reads.
      used: for each of these leaves, whether the program reads it.
      kept: the indices of the parameters that stay float.
      outputs: the tree of the outputs.
    """

    program: Program
    used: list[bool]
    kept: list[int]
    outputs: Any


class Int8Function:
    """A function in int8, of int8 parameters and inputs. Traced once for each shape of the inputs."""

    def __init__(self, function: Function, parameters: Parameters, plan: Plan):
        self._function, self._plan = function, plan
        self._parameters = parameters._replace(leaves=list(map(abstract, parameters.leaves)))
        self._programs: dict[Any, _Rewritten] = {}
        self._fingerprint = _fingerprint(plan)
        self.__name__ = f"int8_{getattr(function.apply, '__name__', 'apply')}"

    def __repr__(self) -> str:
        return f"<int8 function of {getattr(self._function.apply, '__name__', 'apply')}: {len(self._plan.sites)} sites>"

    def __call__(self, params: Mapping[str, Mapping[str, Any]], /, *inputs: Any) -> Any:
        try:
            return self._called(params, inputs)
        except (RuntimeError, ValueError) as error:
            explain(self.__name__, {"params": params, "inputs": inputs}, error)
            raise

    def _called(self, params: Mapping[str, Mapping[str, Any]], inputs: tuple[Any, ...]) -> Any:
        packed, static, floats = self._parts(params)
        rewritten = self._programs.get(traced.types(inputs))
        if rewritten is None:
            found = traced.sited(self._function, self._parameters, inputs)
            self._require_same(found.plan)
            rewritten = self._rewritten(found, packed, static, inputs)
            self._remember(inputs, rewritten)
        names = [self._parameters.names[number] for number in rewritten.kept]
        missing = [name for name in names if name not in floats]
        if missing:
            raise DescriptorError(
                f"{self.__name__}: for inputs of these shapes, apply reads {missing[0]} unquantized, and "
                "the int8 parameters do not contain it"
            )
        leaves = jax.tree.leaves((packed, static, [floats[name] for name in names], inputs))
        used = [leaf for leaf, is_used in zip(leaves, rewritten.used, strict=True) if is_used]
        return jax.tree.unflatten(rewritten.outputs, jaxprs.evaluate(rewritten.program, *used))

    def _parts(self, params: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The int8 parameters, checked to be those of this function."""
        if not isinstance(params, Mapping) or set(params) != {"sites", "inputs", "float"}:
            raise DescriptorTypeError(
                f"{self.__name__}: params is {described(params)}; it must be the int8 parameters, which transform.quantized "
                "returned with the function, or restored ones"
            )
        packed, static, floats = (dict(params[part]) for part in ("sites", "inputs", "float"))
        for part, given, own in (("sites", packed, self._plan.stored()), ("inputs", static, self._plan.inputs())):
            differing = given.keys() ^ {site.name for site in own}
            if differing:
                names = ", ".join(sorted(differing))
                raise DescriptorError(
                    f"{self.__name__}: the {part} of the int8 parameters do not belong to this function: {names}"
                )
        return packed, static, floats

    def _remember(self, inputs: tuple[Any, ...], rewritten: _Rewritten) -> None:
        """Keeps the program for inputs of these types, unless it belongs to an enclosing trace."""
        if not any(isinstance(constant, jax.core.Tracer) for constant in rewritten.program.constants):
            self._programs[traced.types(inputs)] = rewritten

    def _rewritten(self, found: Sited, packed: Any, static: Any, inputs: tuple[Any, ...]) -> _Rewritten:
        """The program with integer products, without the parameters that it does not need."""

        def function(packed: Any, static: Any, floats: list[Any], inputs: tuple[Any, ...]) -> list[Any]:
            leaves = [*floats, *jax.tree.leaves(inputs)]
            return rewrite.run(found.plan, _in_integers, leaves, rewrite.Resources(packed, static))[0]

        floats = self._parameters.leaves
        program, _ = jaxprs.trace(function, packed, static, floats, inputs)
        program, used = jaxprs.without_unused_inputs(program)
        before = len(jax.tree.leaves((packed, static)))
        of_floats = used[before : before + len(floats)]
        kept = [number for number, is_used in enumerate(of_floats) if is_used]
        used = [*used[:before], *(True for _ in kept), *used[before + len(floats) :]]
        return _Rewritten(program, used, kept, jax.tree.structure(found.outputs))

    def _require_same(self, plan: Plan) -> None:
        """Asserts that a program for other inputs has the same sites as the parameters."""
        fingerprint = _fingerprint(plan)
        if fingerprint == self._fingerprint:
            return
        names = [
            name for name in {**self._fingerprint, **fingerprint} if self._fingerprint.get(name) != fingerprint.get(name)
        ]
        message = f"{self.__name__}: for inputs of these shapes, apply has different sites from those of the int8 parameters"
        raise DescriptorError(f"{message}: {', '.join(names)}. Does it branch in Python on a size of its input?")


def _fingerprint(plan: Plan) -> dict[str, Any]:
    return {
        site.name: (site.weights.text, site.storage, site.stored, site.input, site.scheme, site.kind)
        for site in plan.sites.values()
    }


def _in_integers(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
    stored, x = scope.stored(site), operands[site.input_operand]
    if site.kind == LOOK_UP:
        return _without_derivative(site, compute.look_up)(stored, x)
    if compute.is_weight_only(site):
        return compute.weight_only_result(site, stored, x)
    static = scope.static(site)
    quantize = _without_derivative(site, compute.quantize_input)
    given = scope.once(site.input, lambda: quantize(x, static))
    return _without_derivative(site, compute.integer_result)(stored, given)


def _without_derivative(site: Site, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A computation at a site. Its derivative, which would be silently wrong, raises."""
    function = jax.custom_jvp(functools.partial(compute, site))

    def raise_error(primals: Any, tangents: Any) -> Any:
        message = f"the int8 function has no derivative through {site.name}: differentiate the one that"
        raise DescriptorError(f"{_NAME}: {message} transform.quantization_aware returns")

    function.defjvp(raise_error)
    return function
