"""int8 ONNX files of other people's packages."""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.compared.workload import (
    FLOAT32,
    LLAMA_CPP,
    NATIVE,
    NO_LAYERS,
    ONNXRUNTIME,
    QWIX,
    WITHOUT,
    Entry,
    Workload,
    jax_entry,
    same_top,
)
from benchmarks.contestant import Unavailable
from benchmarks.contestants.onnxruntime import session
from benchmarks.models.packages import PACKAGED

WHEELS = Path(os.environ.get("JQUANT_WHEELS", "wheels"))


def workload(name: str) -> Workload:
    """The first output is judged, beside onnxruntime's with its optimizations off, on the file's random inputs."""
    model = PACKAGED[name]
    proto, x = read(name), model.inputs(np.random.default_rng(0))
    exact = plain(proto)
    first, expected = exact.get_outputs()[0].name, exact.run(None, x)[0]

    def quality(actual: Any) -> str:
        actual = np.asarray(actual)
        if np.issubdtype(expected.dtype, np.integer):  # classes
            return f"{np.mean(expected == actual):.0%}"
        is_finite = np.isfinite(expected)  # masked outputs are not, which must be the same
        a, b = np.float64(expected[is_finite]), np.float64(actual[is_finite])
        if not np.array_equal(expected[~is_finite], actual[~is_finite], equal_nan=True):
            return "other infinities"
        cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        return f"{cosine:.4f}, {same_top(expected, actual)}" if expected.shape[-1] > 1 else f"{cosine:.4f}"

    @functools.cache
    def loaded() -> Any:
        import onnx

        import jquant

        return jquant.onnx.load(onnx.load_from_string(proto), qdq="fused")

    def ours(contestant: str) -> Entry:
        operands = loaded().params, jax.device_put(x)
        return jax_entry(contestant, loaded(), operands, lambda run: quality(run(*operands)[first]))

    def theirs() -> Entry:
        start = time.perf_counter()
        created = session(proto)
        seconds = time.perf_counter() - start
        run: Callable[[], Any] = functools.partial(created.run, None, x)
        return Entry(run, seconds, quality(run()[0]))

    makers = {
        FLOAT32: "the files of packages have no float32",
        WITHOUT: functools.partial(ours, WITHOUT),
        NATIVE: functools.partial(ours, NATIVE),
        ONNXRUNTIME: theirs,
        LLAMA_CPP: NO_LAYERS,
        QWIX: "it reads no ONNX files",
    }
    return Workload(f"{name}, {model.input}", "cosine, same top output", makers)


def read(name: str) -> bytes:
    try:
        return PACKAGED[name].read(WHEELS)
    except FileNotFoundError as error:
        raise Unavailable(f"{error.filename} is not there; {WHEELS} is JQUANT_WHEELS, or wheels") from error


def plain(proto: bytes) -> Any:
    from jquant.onnx import onnxruntime_session

    return onnxruntime_session.session(proto, optimized=False)
