"""Measures operators of the table in rounds, in which they and what they are measured beside take turns."""

import dataclasses
import functools
import resource
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import environment, traffic
from benchmarks.contestant import Call, Unavailable, Wrong, jitted
from benchmarks.elementwise import MEMORY, NAIVE, OURS
from benchmarks.elementwise.engines import tensor_indices
from benchmarks.elementwise.operators import ALL, OPERATORS, VARIANT_SIZE
from benchmarks.measure import measure, quartiles

ALLOCATION_OPERATORS = "dequantize_linear", "quantize_linear", "quantized_linear_add"
ALLOCATION_SIZE = 2**24


def move(*tensors: jax.Array, dtype: np.dtype) -> jax.Array:
    """Reads the tensors and writes a result of this type, and computes almost nothing."""
    unsigned = {size: jnp.dtype(f"uint{8 * size}") for size in (1, 2, 4)}
    bits = (lax.bitcast_convert_type(x, unsigned[x.dtype.itemsize]) for x in tensors)
    mixed = functools.reduce(jnp.bitwise_xor, (x.astype(unsigned[dtype.itemsize]) for x in bits))
    return lax.bitcast_convert_type(mixed, dtype)


def fetch_first(call: Call, count: int | None) -> Call:
    """The call, with only the first elements checked."""
    return call if count is None else dataclasses.replace(call, fetch=lambda result: call.fetch(result)[:count])


def measure_operator(name: str, count: int, rounds: int) -> dict:
    """A row of the table."""
    operator = ALL[name]
    operands = operator.operands(np.random.default_rng(0), count)
    expected = np.asarray(operator.reference(*operands))
    row: dict[str, Any] = {"operator": name, "elements": count, "engine": operator.engine.name, "rounds": rounds}
    calls = {
        OURS: Call(jitted(operator.function, *operands), expected),
        NAIVE: Call(jitted(operator.naive, *operands), expected, np.asarray(1.01 * operator.tolerance)),
    }
    for contestant, call in calls.items():
        try:
            fetch_first(call, operator.checked).check()
        except Wrong as error:
            raise Wrong(f"{name} of {count} elements, {contestant}: {error}") from error
    try:
        call = operator.engine.make(operands, expected)
        fetch_first(call, operator.checked).check()
        calls[operator.engine.name] = call
    except (Unavailable, Wrong) as reason:
        row["reason"] = str(reason)
    except Exception as error:  # whatever another engine raises is its cell of the table
        row["reason"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    tensors, result = [operands[index] for index in tensor_indices(operands)], calls[OURS].run()
    if count == VARIANT_SIZE and all(x.shape == result.shape for x in tensors):
        calls[MEMORY] = Call(jitted(functools.partial(move, dtype=result.dtype), *tensors), np.asarray(result))
    times = measure({contestant: call.run for contestant, call in calls.items()}, rounds)
    row["times_ms"] = {contestant: quartiles(turns.further) for contestant, turns in times.items()}
    row["ratios"] = {
        other: quartiles(times[OURS].further / turns.further) for other, turns in times.items() if other != OURS
    }
    compiled = jax.jit(operator.function).lower(*operands).compile()
    row["temporary_bytes"] = compiled.memory_analysis().temp_size_in_bytes
    row["traffic"] = traffic.read(compiled.as_text()).ratio
    return row


def measure_allocation(name: str, count: int, rounds: int) -> dict:
    """The same program with a freshly allocated output and with a donated one; how many pages each has to fetch."""
    operator = ALL[name]
    operands = tuple(map(jnp.asarray, operator.operands(np.random.default_rng(0), count)))
    into = jax.jit(lambda output, *operands: operator.function(*operands), donate_argnums=0, keep_unused=True)
    fresh = jitted(operator.function, *operands)
    outputs = [fresh()]

    def donated() -> None:
        outputs.append(into(outputs.pop(), *operands).block_until_ready())

    calls: dict[str, Callable[[], Any]] = {"an output of its own": fresh, "a donated output": donated}
    times = measure(calls, rounds)
    return {
        "operator": name,
        "elements": count,
        "bytes": outputs[0].nbytes,
        "times_ms": {output: quartiles(turns.further) for output, turns in times.items()},
        "page_faults": {output: page_faults(call) for output, call in calls.items()},
    }


def page_faults(call: Callable[[], Any]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def measure_all(names: Sequence[str], sizes: Sequence[int], rounds: int) -> dict:
    """All results. Calls on 2**24 elements take a hundred times as long as their turns, and get a fifth of the rounds."""
    from tqdm import tqdm

    results = {
        "environment": environment.describe(["onnxruntime", "tensorflow-cpu"]),
        "rounds": rounds,
        "operators": [],
        "allocation": [],
    }
    fewer = max(2, rounds // 5)
    tasks = [(name, count) for count in sizes for name in names if name in OPERATORS or count == VARIANT_SIZE]
    for name, count in (progress := tqdm(tasks, leave=False, disable=None)):
        progress.set_description(f"{name}, {count:,} elements")
        results["operators"].append(measure_operator(name, count, fewer if count > 2**20 else rounds))
    if ALLOCATION_SIZE in sizes:
        for name in ALLOCATION_OPERATORS:
            if name in names:
                results["allocation"].append(measure_allocation(name, ALLOCATION_SIZE, fewer))
    return results
