"""Finds out at which sites bits count, and chooses a scheme for each."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jquant.arguments.statics import boolean, integer, is_sequence, number
from jquant.errors import TransformError, TransformTypeError
from jquant.placement import explain_array_errors_as
from jquant.transform.choosing.choices import Choices
from jquant.transform.choosing.frontier import Choice, frontier
from jquant.transform.choosing.mixed_result import Assignment, MixedPrecision, SiteChoice
from jquant.transform.choosing.stored_arrays import StoredArrays
from jquant.transform.choosing.trials import Trials
from jquant.transform.noise import decibels
from jquant.transform.observations.input_batches import each_inputs
from jquant.transform.program import traced
from jquant.transform.program.parameters import described, flattened, size_in_bytes
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.recipes.recipe import Recipe, Scheme

_NAME = "transform.mixed_precision"
_NUM_MEASURED = 12  # of the best assignments, whose noise is measured and not only predicted


@explain_array_errors_as(_NAME, TransformError)
def mixed_precision(
    apply: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    candidates: Sequence[Scheme | None],
    *,
    max_bytes: int | None = None,
    min_decibels: float | None = None,
    smallest: int = 256,
    progress: bool = False,
) -> MixedPrecision:
    """Finds out at which sites bits count, and makes a recipe that spends them there.

    For each site and each candidate, the noise of the function is measured with this site alone quantized: at the outputs
    of the function, so that it counts what the layers behind the site make of it. As a prediction, the noise of the sites
    adds. By that, the assignment of candidates to sites is the best: with `max_bytes`, the one with the least noise that
    fits; with `min_decibels`, the smallest of those that were measured and reach the limit, which a bisection of the best
    assignments finds. The noise of the result is measured, too.

    A site is one of `sites`, by its name; one that a `jax.lax.scan` stacks has one choice for all of its layers. A candidate
    that a site cannot take, such as INT4 at a convolution, is no choice for it. Products of two activations, and sites
    inside `jax.shard_map`, stay float.

    With S pairs of a site and a scheme, and C candidates, the function runs up to S + C + 16 times on each batch, and up to
    20 times more with `min_decibels`; and once more for each candidate with static inputs, to calibrate it. All but the
    latter run one program, compiled once for each batch shape, that has each site in float and in all schemes. The packed
    weights of all candidates are in memory at once, beside the parameters, and so are the batches.

    Args:
      apply, params: as for `quantize`; `params` has arrays.
      batches: as for `calibrate`. The noise is measured on them, and the ranges of static inputs are found in them.
      candidates: `Scheme`, and None for sites that may stay float; at least two, all different.
      max_bytes: the bytes that all parameters may take as they are stored, as `report` counts them.
      min_decibels: the signal-to-noise ratio that the function must have, as `report` measures it. Pass one of the two.
      smallest: the fewest elements that weights must have to be quantized, as in a `Recipe`.
      progress: whether to show progress bars, which need tqdm.

    Returns:
      `MixedPrecision`, which prints as a table; its `recipe` and `calibration` are for `quantize`, and
      ``search.draw("bits.png")`` plots it.

    Raises:
      TransformError: a function without a site, without float outputs, or with outputs that are not finite or all 0; no
        batch, or one for which the function has different sites; fewer than two candidates, or equal ones; both limits, or
        none; a limit that no assignment keeps: the message has the best that is possible, or that was reached; for static
        candidates, what `calibrate` raises.
      TransformTypeError: an argument of the wrong type, or a leaf of `params` or of a batch that is not an array. What
        `apply` raises is not changed, but for a note of what it was called with.
      ImportError: `progress` is set, but tqdm is not installed.

    Example:
      >>> import jax
      >>> from jquant import transform
      >>> def apply(params, x):
      ...     return jax.nn.relu(x @ params["hidden"]) @ params["head"]
      >>> keys = jax.random.split(jax.random.key(0), 3)
      >>> params = {"hidden": jax.random.normal(keys[0], (32, 64)), "head": jax.random.normal(keys[1], (64, 16))}
      >>> batches = [jax.random.normal(keys[2], (8, 32))]
      >>> candidates = [transform.Scheme(weight_type="INT4"), transform.Scheme()]
      >>> search = transform.mixed_precision(apply, params, batches, candidates, max_bytes=2500)
      >>> [(pattern, scheme.weight_type) for pattern, scheme in search.recipe.rules]
      [('hidden', 'INT4'), ('head', 'INT8')]
      >>> quantized_apply, quantized_params = transform.quantize(apply, params, search.recipe, *batches)
    """
    schemes = _checked_candidates(candidates)
    with as_transform_errors():
        max_bytes, min_decibels = _limits(max_bytes, min_decibels)
        progress = boolean(_NAME, "progress", progress)
    traced.checked(_NAME, apply, Recipe([("*", None)], smallest=smallest))
    all_inputs = each_inputs(_NAME, batches, False)
    float_bytes = size_in_bytes(flattened(_NAME, params, allow_traced=False).leaves)
    kept_batches = list(all_inputs)
    if not kept_batches:
        raise TransformError(f"{_NAME}: batches is empty")
    trials = Trials(_NAME, apply, params, kept_batches, schemes, smallest, progress)
    search = _Search(trials, may_be_float=None in schemes)
    choices = trials.choices
    uniform = [choices.uniform(index) for index in range(len(schemes))]
    search.measure([*uniform, *search.path()])
    if max_bytes is not None:
        chosen = search.within(max_bytes)
    else:
        assert min_decibels is not None
        chosen = search.reaching(min_decibels)
    search.measure([chosen])
    result = search.assignment(chosen)
    return MixedPrecision(
        recipe=choices.recipe(chosen, smallest),
        calibration=choices.calibration(chosen, trials.calibrations),
        candidates=schemes,
        sites=_site_choices(search, trials.stored, choices, chosen, schemes),
        snr=result.snr,
        predicted_snr=result.predicted_snr,
        float_bytes=float_bytes,
        quantized_bytes=result.quantized_bytes,
        uniform=tuple(map(search.assignment, uniform)),
        path=tuple(map(search.assignment, search.path())),
        max_bytes=max_bytes,
        min_decibels=min_decibels,
    )


def _checked_candidates(candidates: Any) -> tuple[Scheme | None, ...]:
    """The candidates, asserting that they are schemes or None, and that there is something to choose."""
    if not is_sequence(candidates):
        wanted = "it must be a list of Scheme, and None for float"
        raise TransformTypeError(f"{_NAME}: candidates is {described(candidates)}; {wanted}")
    schemes = tuple(candidates)
    for index, scheme in enumerate(schemes):
        if not isinstance(scheme, Scheme | None):
            wanted = "it must be a Scheme, or None for float"
            wanted += "; pass the schemes of its rules" if isinstance(scheme, Recipe) else ""
            raise TransformTypeError(f"{_NAME}: candidates[{index}] is {described(scheme)}; {wanted}")
        if scheme in schemes[:index]:
            raise TransformError(f"{_NAME}: candidates has {scheme} twice")
    if len(schemes) < 2:
        raise TransformError(f"{_NAME}: candidates is {list(schemes)}; it must have at least two, to choose from")
    return schemes


def _limits(max_bytes: Any, min_decibels: Any) -> tuple[int | None, float | None]:
    """The limits, asserting that there is one."""
    if (max_bytes is None) == (min_decibels is None):
        given = "neither max_bytes nor min_decibels is" if max_bytes is None else "both max_bytes and min_decibels are"
        raise TransformError(f"{_NAME}: {given} given; pass one of them")
    if max_bytes is not None:
        return integer(_NAME, "max_bytes", max_bytes, range(2**63), "a number of bytes"), None
    return None, number(_NAME, "min_decibels", min_decibels, -1000, 1000)


class _Search:
    """The best assignments of choices to sites, and the noise of those that were measured.

    An assignment is a tuple of the numbers that sites choose.
    """

    def __init__(self, trials: Trials, *, may_be_float: bool):
        self._trials, self._stored = trials, trials.stored
        self._measured = {(0,) * len(trials.choices.options): 0.0}
        counts = [len(options) + 1 for options in trials.choices.options.values()]
        self._alone = [[_only(len(counts), site, number) for number in range(count)] for site, count in enumerate(counts)]
        self.measure(assignment for assignments in self._alone for assignment in assignments)
        first = 0 if may_be_float else 1
        self._best = frontier(
            [
                [Choice(number, self.alone(site, number), needs[number]) for number in range(first, len(needs))]
                for site, needs in enumerate(self._stored.needs.values())
            ],
            self._stored.sizes,
        )
        sizes = self._best.bytes
        evenly = np.linspace(sizes[0], sizes[-1], _NUM_MEASURED)
        self._path = sorted(set(np.searchsorted(sizes, evenly).tolist()))

    def measure(self, assignments: Iterable[tuple[int, ...]]) -> None:
        """Measures the noise of assignments."""
        new = [each for each in dict.fromkeys(assignments) if each not in self._measured]
        if new:
            self._measured.update(zip(new, self._trials.measure(new), strict=True))

    def alone(self, site: int, number: int) -> float:
        """The noise of a choice of one site, with the others in float."""
        return self._measured[self._alone[site][number]]

    def assignment(self, numbers: tuple[int, ...]) -> Assignment:
        """What is known about an assignment that was measured."""
        predicted = sum(self.alone(site, number) for site, number in enumerate(numbers))
        return Assignment(self._stored.bytes(numbers), decibels(1, predicted), self._decibels(numbers))

    def path(self) -> list[tuple[int, ...]]:
        """Some of the best assignments, from the smallest to the largest, evenly by bytes; and those of `reaching`."""
        return list(map(self._numbers, self._path))

    def within(self, max_bytes: int) -> tuple[int, ...]:
        """The assignment with the least noise, as predicted, in so many bytes."""
        count = int(np.searchsorted(self._best.bytes, max_bytes - self._stored.always, side="right"))
        if not count:
            smallest = self._stored.always + int(self._best.bytes[0])
            message = (
                f"max_bytes is {max_bytes:,}, but with these candidates the parameters take at least {smallest:,} bytes"
            )
            raise TransformError(f"{_NAME}: {message}")
        return self._numbers(count - 1)

    def reaching(self, min_decibels: float) -> tuple[int, ...]:
        """The smallest assignment of the best that was measured to reach a ratio, once `path` has been measured."""
        ratios = {index: self._decibels(self._numbers(index)) for index in self._path}
        reaching = [index for index, ratio in ratios.items() if ratio >= min_decibels]
        if not reaching:
            message = f"min_decibels is {min_decibels:g}, but the best that was reached is {max(ratios.values()):.2f} dB"
            raise TransformError(f"{_NAME}: {message}")
        enough = reaching[0]
        too_few = max((index for index in self._path if index < enough), default=enough - 1)
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            self._path = sorted([*self._path, middle])
            self.measure([self._numbers(middle)])
            if self._decibels(self._numbers(middle)) >= min_decibels:
                enough = middle
            else:
                too_few = middle
        return self._numbers(enough)

    def _numbers(self, index: int) -> tuple[int, ...]:
        return tuple(self._best.numbers[index].tolist())

    def _decibels(self, numbers: tuple[int, ...]) -> float:
        return decibels(1, self._measured[numbers])


def _only(count: int, site: int, number: int) -> tuple[int, ...]:
    """The assignment in which all sites are float but one."""
    return tuple(number if each == site else 0 for each in range(count))


def _site_choices(
    search: _Search,
    stored: StoredArrays,
    choices: Choices,
    numbers: Sequence[int],
    schemes: Sequence[Scheme | None],
) -> tuple[SiteChoice, ...]:
    """The rows of the table."""
    rows, floats, arrays = [], set(), set()
    for index, (name, option) in enumerate(choices.chosen(numbers).items()):
        options, needs = choices.options[name], stored.needs[name]
        ratios = {each.candidate: decibels(1, search.alone(index, number)) for number, each in enumerate(options, 1)}
        new_floats, new_arrays = needs[0] - floats, needs[numbers[index]] - arrays
        floats, arrays = floats | new_floats, arrays | new_arrays
        row = SiteChoice(
            name=name,
            kind=options[0].site.kind,
            snr=tuple(math.inf if scheme is None else ratios.get(each) for each, scheme in enumerate(schemes)),
            choice=option and option.site.scheme,
            float_bytes=sum(stored.sizes[need] for need in new_floats),
            quantized_bytes=sum(stored.sizes[need] for need in new_arrays),
        )
        rows.append(row)
    return tuple(rows)
