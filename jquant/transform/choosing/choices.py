"""A function whose sites choose how they compute, by numbers that are inputs of the program."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from jquant.transform.formats.stored_weights import SMOOTHING
from jquant.transform.observations.statistics import range_of
from jquant.transform.program.layouts import ACTIVATION_MATMUL, CONVOLUTION, EMBEDDING, MATMUL
from jquant.transform.program.plan import Plan, Site
from jquant.transform.recipes.recipe import Recipe
from jquant.transform.rewriting import compute, rewrite
from jquant.transform.weights.prepared_weights import without_factors


class Option(NamedTuple):
    """A way to quantize a site.

    Attributes:
      candidate: the number of the scheme among the candidates.
      site: the site with that scheme.
    """

    candidate: int
    site: Site


class Choices(NamedTuple):
    """The sites of a function, and what each may choose: 0 is float, and other numbers, from 1 on, are its options.

    Attributes:
      plan: the program, with all sites that have an option.
      options: the options of each site, by its name, in the order of the program.
    """

    plan: Plan
    options: Mapping[str, Sequence[Option]]

    def resources(
        self, stored: Mapping[int, Mapping[str, Any]], static: Mapping[int, Mapping[str, Any]]
    ) -> rewrite.Resources:
        """What sites read, from the packed weights and the scales of static inputs of each candidate.

        Each site has those of all of its options, and shares arrays with other sites.
        """
        return rewrite.Resources(
            stored={
                name: tuple(stored[candidate][site.stored] for candidate, site in options)
                for name, options in self.options.items()
            },
            static={
                name: tuple(static[candidate][site.input] if site.has_static_input else None for candidate, site in options)
                for name, options in self.options.items()
            },
        )

    def run(self, numbers: jax.Array, inputs: Sequence[Any], resources: rewrite.Resources) -> list[Any]:
        """The outputs of the program, whose sites choose the int32 `numbers`, in the order of `options`."""
        chosen = {name: numbers[index] for index, name in enumerate(self.options)}

        def output(site: Site, operands: Sequence[Any], scope: rewrite.Scope) -> jax.Array:
            stored, static = scope.resources.stored[site.name], scope.resources.static[site.name]
            branches = [functools.partial(rewrite.float_output, site, operands)]
            for option, weights, scale in zip(self.options[site.name], stored, static, strict=True):
                arrays, factors = without_factors(weights), weights.get(SMOOTHING)
                branches.append(functools.partial(compute.output, option.site, arrays, operands, factors, scale))
            return lax.switch(chosen[site.name], branches)

        return rewrite.run(self.plan, rewrite.Functions(output), inputs, resources)[0]

    def uniform(self, candidate: int) -> tuple[int, ...]:
        """The numbers by which all sites choose a candidate, or float if they cannot take it."""
        candidates = ([None, *(option.candidate for option in options)] for options in self.options.values())
        return tuple(each.index(candidate) if candidate in each else 0 for each in candidates)

    def chosen(self, numbers: Sequence[int]) -> dict[str, Option | None]:
        """The option that each site chooses; None for float."""
        each = zip(self.options.items(), numbers, strict=True)
        return {name: options[number - 1] if number else None for (name, options), number in each}

    def recipe(self, numbers: Sequence[int], smallest: int) -> Recipe:
        """A recipe with a rule for each site."""
        rules = [(_pattern(name), option and option.site.scheme) for name, option in self.chosen(numbers).items()]
        return Recipe(rules, smallest=smallest)

    def calibration(self, numbers: Sequence[int], calibrations: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
        """What that recipe needs of the calibrations of the candidates; None if it needs nothing."""
        observed = {}
        for name, option in self.chosen(numbers).items():
            if option is None:
                continue
            candidate, site = option
            if site.has_static_input:
                observed[name] = calibrations[candidate][site.input]
            if site.needs_statistics:
                observed[name] = calibrations[candidate][site.statistics]
                if site.has_static_input:
                    range = range_of(calibrations[candidate][site.input])
                    observed[name] = observed[name]._replace(range=range)
        return observed or None


def _pattern(name: str) -> str:
    """The pattern that matches this name alone, and is not a kind."""
    if name in (MATMUL, CONVOLUTION, EMBEDDING, ACTIVATION_MATMUL):
        return f"[{name[0]}]{name[1:]}"
    return re.sub(r"([*?[])", r"[\1]", name)


def united(plans: Mapping[int, Plan]) -> Choices:
    """The choices between the sites of plans, by candidate, that were read from one program."""
    sites: dict[Any, Site] = {}
    options: dict[str, list[Option]] = {}
    for candidate, plan in plans.items():
        for path, site in plan.sites.items():
            sites.setdefault(path, site)
            options.setdefault(site.name, []).append(Option(candidate, site))
    paths = sorted(sites)  # the order of the program
    plan = dataclasses.replace(
        next(iter(plans.values())),
        sites={path: sites[path] for path in paths},
        selecting=frozenset().union(*(plan.selecting for plan in plans.values())),
        inner=frozenset().union(*(plan.inner for plan in plans.values())),
        shared=frozenset().union(*(plan.shared for plan in plans.values())),
    )
    return Choices(plan, {sites[path].name: options[sites[path].name] for path in paths})


def without_shard_maps(plan: Plan) -> Plan:
    """The plan without the sites inside `jax.shard_map`, which stay float."""
    return dataclasses.replace(plan, sites={path: site for path, site in plan.sites.items() if site.shard_map is None})
