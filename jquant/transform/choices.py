"""A function whose sites choose how they compute, by numbers that are inputs of the program."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from jquant.transform import compute, rewrite
from jquant.transform.plan import Plan, Site


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
                branches.append(functools.partial(compute.output, option.site, weights, operands, scale))
            return lax.switch(chosen[site.name], branches)

        return rewrite.run(self.plan, rewrite.Functions(output), inputs, resources)[0]


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
