"""Where the time of a compiled program goes, and what compiling it costs."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

PROFILED_CALLS = 20
_OPERATION = r'^ *(?:ROOT )?%([\w.-]+) = .*? ([a-z-]+)\(.*?(?:op_name="([^"]*)".*)?$'
_CONTROL_FLOW = ("while", "call", "conditional")  # whose time is that of the operations inside


def finish(program: Callable[..., Any], operands: tuple) -> Any:
    return jax.block_until_ready(program(*operands))


def compiled(program: Callable[..., Any], operands: tuple) -> tuple[jax.stages.Compiled, float]:
    """A jitted function for operands of these shapes, and the seconds to trace and compile it from scratch."""
    jax.clear_caches()
    start = time.perf_counter()
    executable = program.lower(*operands).compile()
    return executable, time.perf_counter() - start


def compile_cost(program: Callable[..., Any], operands: tuple) -> tuple[float, float]:
    """The seconds to trace and compile a program from scratch, and the megabytes that it needs besides its operands."""
    executable, seconds = compiled(program, operands)
    analysis = executable.memory_analysis()
    return seconds, (analysis.temp_size_in_bytes + analysis.output_size_in_bytes) / 1e6


def profile(program: Callable[..., Any], operands: tuple, kinds: dict[str, str]) -> Counter:
    """The milliseconds that a call spends in each kind of operation, on average, from JAX's profiler."""
    milliseconds: Counter = Counter()
    for name, time_of in operations(program, operands).items():
        kind = next(kind for kind, expression in kinds.items() if re.search(expression, name))
        milliseconds[kind] += time_of
    return milliseconds


def operations(program: Callable[..., Any], operands: tuple) -> Counter:
    """The milliseconds that a call spends in each operation of JAX, on average, from JAX's profiler.

    XLA fuses operations, and names the result after the last one. Copies and the like of its own have no name in JAX.
    """
    text = program.lower(*operands).compile().as_text()
    names = {
        operation: name or f"XLA's own {opcode} {operation}"
        for operation, opcode, name in re.findall(_OPERATION, text, re.MULTILINE)
        if opcode not in _CONTROL_FLOW
    }
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(PROFILED_CALLS):
                finish(program, operands)
        (path,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        events = [event for plane in planes for line in plane.lines for event in line.events]
    milliseconds: Counter = Counter()
    for event in events:
        if event.name in names:
            milliseconds[names[event.name]] += 1e-6 * event.duration_ns / PROFILED_CALLS
    return milliseconds
