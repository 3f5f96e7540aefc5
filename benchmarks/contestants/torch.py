"""PyTorch, on the GPU if JAX has one, else on the CPU."""

import os
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.contestant import Call, Contestant, Unavailable, cores, in_turn, require
from benchmarks.problem import Problem


def _int_mm(problem: Problem) -> Call:
    # OpenMP reads this when it is loaded. By default, threads that wait spin, and take the processor from other contestants.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    torch = require("torch")
    backend = jax.default_backend()
    if backend not in ("cpu", "gpu"):
        raise Unavailable(f"not measured alongside a {backend.upper()}")
    if backend == "gpu" and not torch.cuda.is_available():
        raise Unavailable("this PyTorch has no GPU")
    if problem.shape.batch > 1:
        raise Unavailable("torch._int_mm does not take a batch")
    torch.set_num_threads(cores())

    def call() -> Callable[[], Any]:
        a, b = (torch.from_numpy(x.copy()).to("cuda" if backend == "gpu" else "cpu") for x in (problem.a_int8, problem.b))

        def run() -> Any:
            result = torch._int_mm(a, b)
            if backend == "gpu":
                torch.cuda.synchronize()
            return result

        return run

    run = in_turn([call() for _ in range(problem.shape.layers)])
    return Call(run, problem.int8_product, fetch=lambda result: result.cpu().numpy())


CONTESTANTS = (Contestant("torch", "torch._int_mm, int8 x int8 to int32, no zero points", _int_mm, "torch"),)
