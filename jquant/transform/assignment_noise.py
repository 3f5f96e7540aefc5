"""Measures the noise of a function for assignments of candidates to its sites."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jquant.calibration.batches import with_progress
from jquant.errors import TransformError
from jquant.transform import choices, noise, reader, traced
from jquant.transform.choices import Choices
from jquant.transform.parameters import Parameters
from jquant.transform.plan import Plan
from jquant.transform.rewrite import Resources
from jquant.transform.traced import Function


class AssignmentNoise:
    """The noise of a function whose sites choose among candidates, over a data set.

    One program is compiled for each batch shape. It computes the function for any assignment.

    Attributes:
      plans: the sites of the function with each candidate, for the first batch.
      choices: the choices between them.
    """

    def __init__(self, functions: Mapping[int, Function], parameters: Parameters, batches: Sequence[tuple[Any, ...]]):
        self._functions, self._parameters, self._batches = functions, parameters, batches
        self._name = next(iter(functions.values())).name
        self._programs: dict[Any, Callable[..., list[Any]]] = {}
        self.plans = self._read(batches[0])
        self.choices = choices.united(self.plans)
        traced.require_sites(next(iter(functions.values())), self.choices.plan)

    def measure(self, resources: Resources, assignments: Iterable[Sequence[int]], progress: bool) -> list[float]:
        """The noise for each assignment, in parts of the signal: power over power, over all float outputs and batches."""
        numbers = [[0] * len(self.choices.options), *assignments]
        steps: Iterable[Any] = [(inputs, number) for inputs in self._batches for number in range(len(numbers))]
        if progress:
            steps = with_progress(self._name, steps, "measuring", "run")
        signal, powers, exact = 0.0, np.zeros(len(numbers)), []
        for inputs, number in steps:
            outputs = self.outputs(resources, numbers[number], inputs)
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

    def outputs(self, resources: Resources, numbers: Sequence[int], inputs: tuple[Any, ...]) -> list[Any]:
        """The outputs of the function for one batch, if the sites choose these numbers."""
        return self._program(inputs)(np.array(numbers, np.int32), self._parameters.leaves, inputs, resources)

    def _read(self, inputs: tuple[Any, ...]) -> dict[int, Plan]:
        """The sites with each candidate, all from one program."""
        first = next(iter(self._functions.values()))
        program = traced.trace(first, self._parameters, inputs).program
        return {
            candidate: choices.without_shard_maps(reader.read(program, self._parameters.names, function.recipe))
            for candidate, function in self._functions.items()
        }

    def _program(self, inputs: tuple[Any, ...]) -> Callable[..., list[Any]]:
        types = traced.input_types(inputs)
        if types not in self._programs:
            plans = self._read(inputs)
            for candidate, plan in plans.items():
                expected, actual = self.plans[candidate].fingerprint(), plan.fingerprint()
                if actual != expected:
                    names = [name for name in {**expected, **actual} if expected.get(name) != actual.get(name)]
                    raise TransformError(f"{self._name}: a batch has different sites from the first: {', '.join(names)}")
            self._programs[types] = jax.jit(_outputs(choices.united(plans)))
        return self._programs[types]


def _outputs(choices: Choices) -> Callable[..., list[Any]]:
    """A function that maps the numbers that sites choose, the parameters, the inputs and what sites read to the outputs."""

    def outputs(numbers: Any, parameters: list[Any], inputs: tuple[Any, ...], resources: Resources) -> list[Any]:
        return choices.run(numbers, [*parameters, *jax.tree.leaves(inputs)], resources)

    return outputs


@jax.jit
def _powers(exact: list[Any], outputs: list[Any]) -> tuple[Any, Any] | None:
    """The power of the float outputs, and that of their noise; None if there are no float outputs."""
    pairs = [noise.powers(*pair) for pair in zip(exact, outputs, strict=True)]
    measured = [pair for pair in pairs if pair is not None]
    return (sum(pair[0] for pair in measured), sum(pair[1] for pair in measured)) if measured else None
