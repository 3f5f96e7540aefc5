"""Counts the VLIW bundles of the programs that libtpu compiles for TPUs; no TPU is needed.

A bundle takes a cycle, unless an instruction waits. So the cycles that the products of a step take in the matrix units,
divided by the bundles of the step, are the utilisation to expect:

      | matrix units | int8 TOPS | clock    | products a cycle
  v5e | 4 of 128**2  |  394      | 1.50 GHz | 394e12 / 2 / 1.50e9 = 131e3 = 2 * 4 * 128**2
  v5p | 4 of 128**2  |  459      | 1.75 GHz | 459e12 / 2 / 1.75e9 = 131e3 = 2 * 4 * 128**2    (each of its two cores)
  v6e | 2 of 256**2  | 1836      | 1.75 GHz | 1836e12 / 2 / 1.75e9 = 524e3 = 4 * 2 * 256**2

The programs agree with this: a `vmatmul.s8` takes 32 rows. On v5e, it follows the last one in its unit after 16 bundles, 2
rows a cycle; on v6e after 8, 4 rows a cycle. For K-major B, the programs of libtpu 0.0.42 for v5e have 98 % of the bundles
that this allows: there, something waits. On 7x, a bundle is no measure of a cycle at all.

libtpu reads what to dump when it is loaded: import this module before anything compiles for a TPU.
"""

import os
import pathlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import chips

PRODUCTS_PER_CYCLE = {"v5e": 2 * 4 * 128**2, "v5p": 2 * 4 * 128**2, "v6e": 4 * 2 * 256**2}

_FOLDER = tempfile.TemporaryDirectory()
os.environ["LIBTPU_INIT_ARGS"] = (
    f"--xla_jf_dump_to={_FOLDER.name} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)


class Body(NamedTuple):
    """Consecutive bundles without a branch."""

    bundles: int
    instructions: Counter[str]

    def count(self, prefix: str) -> int:
        """The number of instructions whose names begin with `prefix`."""
        return sum(count for name, count in self.instructions.items() if name.startswith(prefix))


class Program(NamedTuple):
    """A kernel: bodies for the first, the middle and the last K steps, and the other ones, mostly the pipeline's."""

    bodies: list[Body]
    others: list[Body]

    @property
    def pipeline(self) -> int:
        """The bundles of the pipeline, in every grid step."""
        return sum(body.bundles for body in self.others)

    def tile(self, k_steps: int) -> int:
        """The bundles of all K steps of a tile."""
        first, *middle, last = (body.bundles for body in self.bodies) if k_steps > 1 else (0, self.bodies[0].bundles)
        return first + sum(middle) * (k_steps - 2) + last + self.pipeline * k_steps

    @property
    def k_loop(self) -> Body:
        """The body of most K steps: the middle ones, if there are any."""
        return self.bodies[len(self.bodies) // 2]


def compile(chip: str, function: Callable, *arguments, kernel: str = "integer_dot") -> Program:
    """The `kernel` in ``jax.jit(function)``, for trees of arguments of these shapes and dtypes."""
    folder = pathlib.Path(_FOLDER.name)
    before = set(folder.iterdir())
    chips.compile(chip, function, *arguments)
    (file,) = (file for file in set(folder.iterdir()) - before if re.search(rf"-{kernel}[^-]*-\d+-final_bundles", file.name))
    return parse(file.read_text())


_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) +(LB|LH|LE|PB|PF|CT)? *:[ >]*(?=\{)", re.MULTILINE)
_INSTRUCTION = re.compile(r"= (v[a-z][\w.]*)")


def parse(text: str) -> Program:
    """Splits the loop over the grid at its branches: the runs of bundles that multiply are the bodies."""
    runs, in_loop = [[]], False
    _, *bundles = _BUNDLE.split(text)
    for label, bundle in zip(bundles[::2], bundles[1::2], strict=True):
        in_loop = in_loop or label == "LB"
        if label:
            runs.append([])
        if in_loop:
            runs[-1].append(bundle)
        if "sbr.rel" in bundle:
            runs.append([])
    bodies = [Body(len(run), Counter(name for bundle in run for name in _INSTRUCTION.findall(bundle))) for run in runs]
    multiply, others = ([body for body in bodies if bool(body.count("vmatmul")) == does] for does in (True, False))
    return Program(multiply, others)
