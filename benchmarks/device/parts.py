"""The parts of the program: each runs in a process of its own, and reports each of its results as soon as it has it."""

import contextlib
import functools
import io
import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import benchmarks
import jquant
from benchmarks import environment
from benchmarks.contestant import Call
from benchmarks.device import rehearsal
from benchmarks.device.cases import Case, cases, make
from benchmarks.measure import measure, quartiles
from benchmarks.problem import Problem
from benchmarks.shapes import Product
from jquant import __main__ as self_check_program
from jquant import self_check
from jquant.modes import Implementation

Report = Callable[[dict], None]  # takes one result

KERNELS = {"tpu": Implementation.MOSAIC_TPU, "gpu": Implementation.MOSAIC_GPU}
_PACKAGES = ("jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
_OWN_FOLDERS = tuple(str(Path(file).parent) for file in (jquant.__file__, benchmarks.__file__) if file)
_TIMED = ((1, 8192, 8192), (33, 4096, 4096), (1024, 4096, 4096), (4096, 4096, 4096))
_ROUNDS, _ROUNDS_OF_A_REHEARSAL = 20, 2
_IN_FLIGHT = 10  # calls that are awaited together, so that dispatching them counts less
_CHECKS_OF_A_REHEARSAL = 4


def run(part: str, report: Report, *, rehearse: bool) -> None:
    jax.config.update("jax_traceback_filtering", "off")  # in `_problem`, the last line is to be the one that raised
    functions: dict[str, Callable[..., None]] = {"device": device, "timings": timings, "self-check": check_installation}
    if part in functions:
        functions[part](report, rehearse=rehearse)
    else:
        compare(Implementation(part), report, rehearse=rehearse)


def device(report: Report, *, rehearse: bool) -> None:
    """The device, and the versions of what is installed."""
    description = environment.describe(_PACKAGES)
    description["versions"]["jquant"] = jquant.__version__
    report(description | {"name": "device", "outcome": "passed", "devices": len(jax.devices())})


def compare(implementation: Implementation, report: Report, *, rehearse: bool) -> None:
    """Compares the bits of twenty products by an implementation with those of NumPy."""
    if rehearse and implementation in KERNELS.values():
        rehearsal.interpret(implementation)
    for case in cases(rehearse=rehearse):
        report({"name": str(case), **compared(case, implementation)})


def compared(case: Case, implementation: Implementation) -> dict:
    """How many elements differ, or why there are none; and the seconds of each step."""
    seconds: dict[str, float] = {}
    try:
        with _timed(seconds, "numpy"):
            function, operands, expected = make(case)
        with _timed(seconds, "compile"):
            program = jax.jit(functools.partial(function, implementation=implementation)).lower(*operands).compile()
        with _timed(seconds, "run"):
            result = np.asarray(program(*operands))
    except Exception as error:  # a compiler may raise anything
        return {**_problem(error), "seconds": seconds}
    different = self_check.differing(result, expected)
    outcome = "differs" if different else "equal"
    return {"outcome": outcome, "elements": expected.size, "different": different, "seconds": seconds}


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[step] = round(time.perf_counter() - start, 4)


def _problem(error: Exception) -> dict:
    """Declined, if a kernel of ours says that it does not do this; failed otherwise, also where Pallas lacks something."""
    place = traceback.extract_tb(error.__traceback__)[-1].filename
    declined = isinstance(error, NotImplementedError) and place.startswith(_OWN_FOLDERS)
    return {"outcome": "declined", "reason": str(error)} if declined else {"outcome": "failed", "error": text_of(error)}


def text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def timings(report: Report, *, rehearse: bool) -> None:
    """Times three products of ours in four shapes, each beside XLA's own of int8, which has no zero points."""
    kernel = KERNELS.get(jax.default_backend(), Implementation.MOSAIC_TPU)
    if rehearse:
        rehearsal.interpret(kernel)
    for m, k, n in _TIMED:
        sizes = {"m": m, "k": k, "n": n}
        shape = Product(name="", layer="", **(rehearsal.smaller(**sizes) if rehearse else sizes))
        results, calls = {}, {}
        for name, make_call in _products(Problem(shape), kernel).items():
            results[name] = {"name": f"{shape.size}, {name}"}
            try:
                call = make_call()
                call.check()
                calls[name] = call.run
            except Exception as error:  # a compiler may raise anything
                results[name] |= _problem(error)
        times = measure(calls, _ROUNDS_OF_A_REHEARSAL if rehearse else _ROUNDS)
        quarters = {name: [one / _IN_FLIGHT for one in quartiles(turns.further)] for name, turns in times.items()}
        for name, result in results.items():
            if name in quarters:
                low, median, high = quarters[name]
                result |= {"outcome": "measured", "median_ms": median, "quartiles_ms": [low, high]}
                result |= {"times_xla": median / quarters[_BY_XLA][1]} if _BY_XLA in quarters else {}
            report(result)


_BY_XLA = "lax.dot_general, int8 x int8 to int32"


def _products(problem: Problem, kernel: Implementation) -> dict[str, Callable[[], Call]]:
    """XLA's own product, and three of ours; what each function makes is checked before it is timed."""

    def by_xla() -> Call:
        def dot(a, b):
            return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)

        return _call(dot, (problem.a_int8, problem.b), problem.int8_product)

    def weights() -> Any:
        return jquant.pack_matrix(problem.b, problem.b_zero_point)

    def to_int32() -> Call:
        function = functools.partial(jquant.matmul_integer, implementation=kernel)
        return _call(function, (problem.a, weights(), problem.a_zero_point), problem.product)

    def to_uint8(implementation: Implementation) -> Call:
        function = functools.partial(jquant.quantized_linear_matmul, output_dtype=np.uint8, implementation=implementation)
        a, b = (problem.a, problem.a_scale, problem.a_zero_point), (weights(), problem.b_scale, None)
        return _call(function, (*a, *b, problem.output_scale, problem.output_zero_point), problem.requantized)

    return {
        _BY_XLA: by_xla,
        f"{kernel}, uint8 x packed int8 to int32": to_int32,
        f"{kernel}, uint8 x packed int8 to uint8": functools.partial(to_uint8, kernel),
        "xla, uint8 x packed int8 to uint8": functools.partial(to_uint8, Implementation.XLA),
    }


def _call(function: Callable[..., jax.Array], operands: tuple, expected: np.ndarray) -> Call:
    """Some calls of the jitted function, awaited together."""
    compiled, operands = jax.jit(function), jax.device_put(operands)

    def calls() -> list[jax.Array]:
        return jax.block_until_ready([compiled(*operands) for _ in range(_IN_FLIGHT)])

    return Call(calls, expected, fetch=lambda results: np.asarray(results[-1]))


def check_installation(report: Report, *, rehearse: bool) -> None:
    """``python -m jquant --no-speed``: each line that it prints is a result. A rehearsal has the first few of each group."""
    if rehearse:
        for group in ("identities", "operators", "products"):
            setattr(self_check, group, _first_of(getattr(self_check, group)))
    with contextlib.redirect_stdout(_Lines(lambda line: report({"name": line, "outcome": "printed"}))):
        inexact = self_check_program.main(["--no-speed"])
    report({"name": "python -m jquant --no-speed", "outcome": "differs" if inexact else "equal"})


def _first_of(comparisons: Callable[..., Iterator]) -> Callable[..., Iterator]:
    return lambda *arguments: itertools.islice(comparisons(*arguments), _CHECKS_OF_A_REHEARSAL)


class _Lines(io.TextIOBase):
    """A file that hands over each line that is written to it."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take, self._rest = take, ""

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)
