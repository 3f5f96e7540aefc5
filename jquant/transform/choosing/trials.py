"""Tries candidates at the sites of a function: measures the noise, and counts the bytes, of any assignment."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jquant import jaxprs
from jquant.calibration.batches import with_progress
from jquant.errors import TransformError
from jquant.transform import noise
from jquant.transform.calibrate import calibrate
from jquant.transform.choosing import choices
from jquant.transform.choosing.choices import Choices
from jquant.transform.choosing.stored_arrays import StoredArrays, stored_arrays
from jquant.transform.observations import statistics
from jquant.transform.observations.static_inputs import static_inputs
from jquant.transform.program import reader, same_sites, traced
from jquant.transform.program.parameters import Parameters, abstract, flattened
from jquant.transform.program.plan import Plan
from jquant.transform.quantize import quantize
from jquant.transform.recipes.recipe import Recipe, Scheme
from jquant.transform.rewriting.rewrite import Resources
from jquant.transform.weights import packing


class Trials:
    """A function whose sites choose among candidates, with the weights packed for each, and a data set.

    One program is compiled for each batch shape. It computes the function for any assignment, which is a sequence of the
    numbers that the sites choose.

    Args:
      name: of the function, for messages.
      apply, params: as for `quantize`.
      batches: the inputs of the function in each batch; at least one.
      schemes: the candidates, with None for float; at least one scheme.
      smallest: as in a `Recipe`.
      progress: whether to show progress bars.

    Attributes:
      choices: the sites, and what each may choose.
      calibrations: what `calibrate` returns, for each candidate that needs it.
      stored: the bytes of what the quantized parameters hold.
    """

    def __init__(
        self,
        name: str,
        apply: Callable[..., Any],
        params: Any,
        batches: Sequence[tuple[Any, ...]],
        schemes: Sequence[Scheme | None],
        smallest: int,
        progress: bool,
    ):
        self._name, self._batches, self._progress = name, batches, progress
        self._parameters = flattened(name, params)
        self._functions = {
            index: traced.checked(name, apply, Recipe([("*", scheme)], smallest=smallest))
            for index, scheme in enumerate(schemes)
            if scheme is not None
        }
        self._plans = self._read(batches[0], 0)
        self.choices = choices.united(self._plans)
        traced.require_sites(next(iter(self._functions.values())), self.choices.plan)
        self._programs = {jaxprs.input_types(batches[0]): _program(self.choices)}
        self.calibrations = {
            candidate: calibrate(apply, params, batches, self._functions[candidate].recipe, progress=progress)
            for candidate, plan in self._plans.items()
            if plan.inputs() or plan.prepared()
        }
        self._resources = self._packed(self.calibrations)
        smallest_recipe = self.choices.recipe([1] * len(self.choices.options), smallest)
        kept = _kept(apply, self._parameters, smallest_recipe, batches[0])
        self.stored: StoredArrays = stored_arrays(self.choices, self._resources, self._parameters.leaves, kept)

    def _packed(self, calibrations: Mapping[int, Mapping[str, Any]]) -> Resources:
        """What the sites read with each candidate: its packed weights, and its scales of static inputs."""
        source = packing.Source(self._name, self._parameters, None, False)
        packed, static = {}, {}
        for candidate, plan in self._plans.items():
            calibration = calibrations.get(candidate)
            observed = statistics.of_sites(self._name, plan, calibration)
            packed[candidate] = source.pack(plan, observed, (), self._progress)[0]
            static[candidate] = static_inputs(self._name, plan, calibration)
        return self.choices.resources(packed, static)

    def measure(self, assignments: Iterable[Sequence[int]]) -> list[float]:
        """The noise for each assignment, in parts of the signal: power over power, over all float outputs and batches."""
        numbers = [[0] * len(self.choices.options), *assignments]
        steps: Iterable[Any] = [(*each, number) for each in enumerate(self._batches) for number in range(len(numbers))]
        if self._progress:
            steps = with_progress(self._name, steps, "measuring", "run")
        signal, powers, exact = 0.0, np.zeros(len(numbers)), []
        for batch, inputs, number in steps:
            outputs = self.outputs(numbers[number], inputs, batch)
            if number == 0:
                exact = outputs
            both = _powers(exact, outputs)
            if both is None:
                raise TransformError(f"{self._name}: apply returns no floats, whose noise could be measured")
            signal += float(both[0]) if number == 0 else 0.0
            powers[number] += float(both[1])
        if not 0 < signal < np.inf:
            what = "all zero" if signal == 0 else "not finite, or their squares are not"
            raise TransformError(f"{self._name}: the outputs of apply are {what}: no noise can be compared with them")
        return list(np.where(np.isnan(powers), np.inf, powers)[1:] / signal)

    def outputs(self, numbers: Sequence[int], inputs: tuple[Any, ...], batch: int | None = None) -> list[Any]:
        """The outputs of the function for the inputs of a batch, of this number, if the sites choose these numbers."""
        return self._program(inputs, batch)(np.array(numbers, np.int32), self._parameters.leaves, inputs, self._resources)

    def _read(self, inputs: tuple[Any, ...], batch: int | None) -> dict[int, Plan]:
        """The sites with each candidate, all from one program."""
        first = next(iter(self._functions.values()))
        program = traced.trace(first, self._parameters, inputs, batch).program
        return {
            candidate: choices.without_shard_maps(reader.read(program, self._parameters.names, function.recipe))
            for candidate, function in self._functions.items()
        }

    def _program(self, inputs: tuple[Any, ...], batch: int | None) -> Callable[..., list[Any]]:
        """The program for inputs of these types."""
        types = jaxprs.input_types(inputs)
        if types not in self._programs:
            plans = self._read(inputs, batch)
            for candidate, plan in plans.items():
                plans[candidate], names = same_sites.fitted(self._plans[candidate], plan)
                names += same_sites.missing(self._plans[candidate], plans[candidate])
                if names:
                    raise TransformError(f"{self._name}: a batch has different sites from the first: {', '.join(names)}")
            self._programs[types] = _program(choices.united(plans))
        return self._programs[types]


def _kept(apply: Callable[..., Any], parameters: Parameters, recipe: Recipe, inputs: tuple[Any, ...]) -> set[int]:
    """The numbers of the parameters that a recipe leaves in float."""
    types = parameters.structure.unflatten(map(abstract, parameters.leaves))
    floats = quantize(apply, types, recipe, *inputs)[1]["float"]
    return {index for index, name in enumerate(parameters.names) if name in floats}


def _program(choices: Choices) -> Callable[..., list[Any]]:
    """A compiled function that maps the numbers that sites choose, parameters, inputs and resources to the outputs."""

    def outputs(numbers: Any, parameters: list[Any], inputs: tuple[Any, ...], resources: Resources) -> list[Any]:
        return choices.run(numbers, [*parameters, *jax.tree.leaves(inputs)], resources)

    return jax.jit(outputs)


@jax.jit
def _powers(exact: list[Any], outputs: list[Any]) -> tuple[Any, Any] | None:
    """The power of the float outputs, and that of their noise; None if there are no float outputs."""
    pairs = [noise.powers(*pair) for pair in zip(exact, outputs, strict=True)]
    measured = [pair for pair in pairs if pair is not None]
    return (sum(pair[0] for pair in measured), sum(pair[1] for pair in measured)) if measured else None
