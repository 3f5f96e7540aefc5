"""Runs a program with another computation at each of its sites."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant import jaxprs
from jquant.arithmetic.straight_through import straight_through
from jquant.jaxprs import Equation, Literal, Path, Program
from jquant.lowering import materialize
from jquant.transform.formats.stored_weights import SMOOTHING
from jquant.transform.program import partition
from jquant.transform.program.plan import ActivationProduct, Plan, Site
from jquant.transform.program.selections import Selected, numbers_after, unselected
from jquant.transform.program.weight_graph import Level
from jquant.transform.weights.prepared_weights import without_factors

State = dict[str, Any]  # pytrees of arrays by the name of the site; inside a loop, those of the current layer


class Resources(NamedTuple):
    """What sites read: pytrees of arrays by the name of the site, as in a `State`.

    Attributes:
      stored: the weights.
      static: the scales and zero points of static inputs.
      adapters: the low-rank matrices whose product is added to the weights.
    """

    stored: Mapping[str, Any]
    static: Mapping[str, Any]
    adapters: Mapping[str, Any] = {}


class Scope:
    """What a site sees: the resources, the state, and the values of other sites that it may reuse.

    Attributes:
      resources: what sites read.
      state: what sites update; a site may replace its tree with one of the same structure and types.
      shared: the values that `once` has computed in this part of the program and in those around it, by key.
    """

    def __init__(self, resources: Resources, state: State, shared: collections.ChainMap):
        self.resources, self.state, self.shared = resources, state, shared

    def stored(self, site: Site) -> Any:
        """The weights of a site."""
        return partition.varying(site, without_factors(self.resources.stored[site.stored]))

    def smoothing(self, site: Site) -> Any:
        """The factors of the channels of a site's input; None if they are not smoothed."""
        return self.resources.stored[site.stored].get(SMOOTHING)

    def adapter(self, site: Site) -> Any:
        """The low-rank matrices whose product is added to the weights of a site; None if there are none."""
        adapter = self.resources.adapters.get(site.name)
        return None if adapter is None else partition.varying(site, adapter)

    def static(self, site: Site) -> Any:
        """The scale and zero point of a static input; None for other inputs."""
        return self.resources.static[site.input] if site.has_static_input else None

    def inner(self, resources: Resources, state: State) -> "Scope":
        """The scope of a body or a branch, whose values are not seen outside."""
        return Scope(resources, state, self.shared.new_child())

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """The value of a key, computed by the first site that asks for it."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]


def float_output(site: Site | ActivationProduct, operands: Sequence[Any]) -> Any:
    """The output of the function's own equation."""
    return jaxprs.bind(site.equation, *map(unselected, operands))[0]


def float_product(product: ActivationProduct, operands: Sequence[Any], scope: Scope) -> Any:
    """The function's own product."""
    return float_output(product, operands)


class Functions(NamedTuple):
    """What is computed from the operands of an equation.

    Attributes:
      site: the output of a site, whose weights may be `Selected`.
      product: the output of a product of two activations.
    """

    site: Callable[[Site, Sequence[Any], Scope], Any]
    product: Callable[[ActivationProduct, Sequence[Any], Scope], Any] = float_product


_NO_RESOURCES = Resources(stored={}, static={})


def run(
    plan: Plan,
    functions: Functions,
    inputs: Sequence[Any],
    resources: Resources = _NO_RESOURCES,
    state: State | None = None,
) -> tuple[list[Any], State]:
    """The outputs of the program, and the state after it.

    Args:
      plan: the program and its sites.
      functions: what is computed at a site, and at a product of two activations.
      inputs: the inputs of the program.
      resources, state: what sites read and update, stacked over the layers of each site.
    """
    scope = Scope(resources, state or {}, collections.ChainMap())
    return _Run(plan, functions).body(plan.program, (), inputs, scope), scope.state


def _resources_of(site: Site) -> list[str]:
    """The names of what a site reads."""
    names = [site.name, site.stored]
    if site.has_static_input:
        names.append(site.input)
    if site.needs_statistics:
        names.append(site.statistics)
    return names


class _Run:
    """One run of a program."""

    def __init__(self, plan: Plan, functions: Functions):
        self._plan, self._functions = plan, functions
        self._levels = {name: site.levels for site in plan.sites.values() for name in _resources_of(site)}

    def program(self, program: Program, path: Path, inputs: Sequence[Any], scope: Scope) -> list[Any]:
        jaxpr, constants = program
        values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        values.update(zip(jaxpr.constvars, constants, strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            inner_path = *path, number
            outputs = self._equation(equation, inner_path, list(map(value, equation.invars)), scope)
            outputs = [
                _materialized(output) if (inner_path, index) in self._plan.shared else output
                for index, output in enumerate(outputs)
            ]
            values.update(zip(equation.outvars, outputs, strict=True))
        return list(map(value, jaxpr.outvars))

    def body(self, program: Program, path: Path, inputs: Sequence[Any], scope: Scope) -> list[Any]:
        """The outputs of a program that hands on no selections: of a loop, a branch or a `shard_map`, or the whole."""
        return list(map(unselected, self.program(program, path, inputs, scope)))

    def _equation(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> Sequence[Any]:
        site = self._plan.sites.get(path)
        if site is not None:
            with jax.named_scope(site.name):
                return [self._functions.site(site, inputs, scope)]
        product = self._plan.products.get(path)
        if product is not None:
            with jax.named_scope(product.name):
                return [self._functions.product(product, list(map(unselected, inputs)), scope)]
        if path not in self._plan.inner:
            if (empty := jaxprs.empty_outputs(equation)) is not None:  # it may read weights that are not there as floats
                return empty
            outputs = jaxprs.bind(equation, *map(unselected, inputs))
            if path not in self._plan.selecting:
                return outputs
            return [Selected(outputs[0], numbers_after(equation, inputs))]
        rule = self._RULES.get(equation.primitive.name, _Run._called)
        return rule(self, equation, path, inputs, scope)

    def _called(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> list[Any]:
        """A call, inlined: the sites in one function may differ between its calls."""
        program = jaxprs.called(equation)
        assert program is not None
        inputs = list(map(_constrained, inputs, equation.params.get("in_shardings", (None,) * len(inputs))))
        outputs = self.program(program, path, inputs, scope)
        return list(map(_constrained, outputs, equation.params.get("out_shardings", (None,) * len(outputs))))

    def _rematerialized(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> list[Any]:
        program = jaxprs.called(equation)
        assert program is not None

        def function(inputs: list[Any], state: State) -> tuple[list[Any], State]:
            inner = scope.inner(scope.resources, state)
            return self.program(program, path, inputs, inner), inner.state

        policy, prevent_cse = equation.params["policy"], equation.params["prevent_cse"]
        outputs, scope.state = jax.checkpoint(function, policy=policy, prevent_cse=prevent_cse)(inputs, scope.state)
        return outputs

    def _scan(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> list[Any]:
        loop = jaxprs.loop(equation)
        constants, count = inputs[: loop.num_constants], loop.num_carry
        inputs = [*constants, *map(unselected, inputs[loop.num_constants :])]
        carry, stacked = inputs[loop.num_constants :][:count], inputs[loop.num_constants + count :]
        resources, common_resources = zip(*(self._divided(path, trees) for trees in scope.resources), strict=True)
        layer_states, states = self._divided(path, scope.state)

        def body(carry: tuple[list[Any], State], layer: tuple) -> tuple[Any, Any]:
            (values, states), (slices, resources, layer_states) = carry, layer
            resources = [{**common, **each} for common, each in zip(common_resources, resources, strict=True)]
            inner = scope.inner(Resources(*resources), {**states, **layer_states})
            outputs = self.body(loop.body, path, [*constants, *values, *slices], inner)
            layer_states, states = self._divided(path, inner.state)
            return (outputs[:count], states), (outputs[count:], layer_states)

        (carry, states), (outputs, layer_states) = lax.scan(
            body,
            (carry, states),
            (stacked, resources, layer_states),
            length=loop.length,
            reverse=loop.reverse,
            unroll=loop.unroll,
        )
        scope.state = {**states, **layer_states}
        return [*carry, *outputs]

    def _shard_map(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> list[Any]:
        mapped = jaxprs.shard_map(equation)
        sites = [site for site in self._plan.sites.values() if site.shard_map == path]
        stored = {site.stored: scope.resources.stored[site.stored] for site in sites}
        names = {site.name for site in sites}
        adapters = {name: pair for name, pair in scope.resources.adapters.items() if name in names}
        stored_specs = {site.stored: partition.specs(site, stored[site.stored]) for site in sites}
        adapter_specs = {site.name: partition.adapter_specs(site) for site in sites if site.name in adapters}

        def body(inputs: list[Any], stored: State, adapters: State) -> list[Any]:
            inner = Scope(Resources(stored, {}, adapters), {}, collections.ChainMap())
            return self.body(mapped.body, path, inputs, inner)

        specs = list(mapped.in_specs), stored_specs, adapter_specs
        options = {"mesh": mapped.mesh, "in_specs": specs, "out_specs": list(mapped.out_specs), **mapped.options}
        return jax.shard_map(body, **options)(list(map(unselected, inputs)), stored, adapters)

    def _divided(self, level: Level, trees: Mapping[str, Any]) -> tuple[State, State]:
        """The trees that are stacked over a loop, and the others."""
        stacked = {name: tree for name, tree in trees.items() if level in self._levels.get(name, ())}
        return stacked, {name: tree for name, tree in trees.items() if name not in stacked}

    def _while(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> list[Any]:
        loop = jaxprs.while_loop(equation)
        condition_constants, inputs = inputs[: loop.num_condition_constants], inputs[loop.num_condition_constants :]
        constants, carry = inputs[: loop.num_body_constants], list(map(unselected, inputs[loop.num_body_constants :]))

        def condition(carry: tuple[list[Any], State]) -> Any:
            return jaxprs.evaluate(loop.condition, *map(unselected, condition_constants), *carry[0])[0]

        def body(carry: tuple[list[Any], State]) -> tuple[list[Any], State]:
            values, state = carry
            inner = scope.inner(scope.resources, state)
            return self.body(loop.body, path, [*constants, *values], inner), inner.state

        outputs, scope.state = lax.while_loop(condition, jaxprs.without_dead_code(body), (carry, scope.state))
        return outputs

    def _cond(self, equation: Equation, path: Path, inputs: list[Any], scope: Scope) -> list[Any]:
        def branch(number: int, program: Program) -> Callable:
            def function(inputs: list[Any], state: State) -> tuple[list[Any], State]:
                inner = scope.inner(scope.resources, state)
                return self.body(program, (*path, number), inputs, inner), inner.state

            return function

        branches = [branch(number, jaxprs.closed(jaxpr)) for number, jaxpr in enumerate(equation.params["branches"])]
        outputs, scope.state = lax.switch(inputs[0], branches, inputs[1:], scope.state)
        return outputs

    _RULES: ClassVar[Mapping[str, Callable[..., list[Any]]]] = {
        "cond": _cond,
        "scan": _scan,
        "shard_map": _shard_map,
        "while": _while,
        **dict.fromkeys(jaxprs.REMATERIALIZED, _rematerialized),
    }


def _materialized(x: jax.Array) -> jax.Array:
    """`x`, computed once for all that read it, one of which quantizes it.

    Quantizing is element-wise, so XLA:CPU would fuse the computation of `x`, and of all that `x` depends on, into each
    reader. In a residual network, each layer would compute all layers before it again.
    """
    return straight_through(materialize.once(x), x) if x.dtype in (jnp.float32, jnp.float16, jnp.bfloat16) else x


def _constrained(value: Any, sharding: Any) -> Any:
    if not isinstance(sharding, jax.sharding.Sharding):
        return value
    if isinstance(value, Selected):
        return value._replace(value=_constrained(value.value, sharding))
    return lax.with_sharding_constraint(value, sharding)
