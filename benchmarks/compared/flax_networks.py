"""Networks of Flax in int8: by jquant, by onnxruntime's quantizers after export, and by Qwix."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
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
    decibels,
    jax_entry,
    same_top,
)
from benchmarks.contestant import require
from benchmarks.contestants.onnxruntime import session
from jquant import transform


def decibels_and_top(expected: np.ndarray, actual: np.ndarray) -> str:
    if np.array_equal(expected, actual):
        return "equal"
    return f"{decibels(expected, actual):.1f}, {same_top(expected, actual)}"


class FloatNetwork(NamedTuple):
    """A network, and what it is measured on.

    Attributes:
      model: the module.
      params: its variables, float32.
      inputs: of one shape; the first is timed, all are judged.
      calibration: inputs that give activations their ranges; empty if each call finds them.
      judge: the quality of outputs, beside those of the float network.
    """

    model: nn.Module
    params: Any
    inputs: Sequence[np.ndarray]
    calibration: Sequence[np.ndarray] = ()
    judge: Callable[[np.ndarray, np.ndarray], str] = decibels_and_top

    def makers(self) -> dict[str, Callable[[], Entry] | str]:
        expected = self.outputs(functools.partial(jax.jit(self.model.apply), self.params))

        def quality(run: Callable[[Any], Any]) -> str:
            return self.judge(expected, self.outputs(run))

        def entry(contestant: str, function: Callable[..., Any], params: Any) -> Entry:
            params, x = jax.device_put((params, self.inputs[0]))
            return jax_entry(contestant, function, (params, x), lambda program: quality(functools.partial(program, params)))

        @functools.cache
        def quantized() -> tuple[Callable[..., Any], Any]:
            recipe, statistics = transform.dynamic_int8, None
            if self.calibration:
                recipe = transform.static_int8
                statistics = transform.calibrate(self.model.apply, self.params, self.calibration, recipe)
            return transform.quantize(self.model.apply, self.params, recipe, self.inputs[0], calibration=statistics)

        def ours(contestant: str) -> Entry:
            return entry(contestant, *quantized())

        def qwix() -> Entry:
            require("qwix")
            from benchmarks.transform.quantized_by_qwix import quantized_by_qwix

            batches = self.calibration or self.inputs[:1]
            return entry(QWIX, *quantized_by_qwix(self.model, self.params, batches, static=bool(self.calibration)))

        def onnxruntime() -> Entry:
            require("onnxruntime")
            require("onnx")
            from benchmarks.onnxruntime_quantization import dynamically, exported, statically

            x = self.inputs[0]
            model = exported(self.model.apply, self.params, x.shape[1:], x.dtype)
            model = statically(model, self.calibration) if self.calibration else dynamically(model)
            start = time.perf_counter()
            created = session(model.SerializeToString())
            seconds = time.perf_counter() - start
            name = created.get_inputs()[0].name

            def run(x: np.ndarray) -> np.ndarray:
                return created.run(None, {name: x})[0]

            return Entry(functools.partial(run, x), seconds, quality(run))

        return {
            FLOAT32: functools.partial(entry, FLOAT32, self.model.apply, self.params),
            WITHOUT: functools.partial(ours, WITHOUT),
            NATIVE: functools.partial(ours, NATIVE),
            ONNXRUNTIME: onnxruntime,
            LLAMA_CPP: NO_LAYERS,
            QWIX: qwix,
        }

    def outputs(self, run: Callable[[Any], Any]) -> np.ndarray:
        return np.concatenate([np.asarray(run(x)) for x in self.inputs])
