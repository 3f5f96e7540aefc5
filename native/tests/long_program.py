"""A long program, whose result is compared with NumPy's. With --interrupt, a signal arrives while it runs."""

import os
import signal
import sys
import threading
import time

import draw
import jax
import jax.numpy as jnp
import numpy as np
from calls import PRODUCT, instruction_set

SIZE, ROUNDS = 700, 40


def multiply(x, weights):
    call = jax.ffi.ffi_call(PRODUCT, jax.ShapeDtypeStruct(x.shape, jnp.int32))
    return call(x, weights, depth_minor=False, roles="")


@jax.jit
def long_program(x, weights):
    """Each product needs the one before it."""

    def step(_, x):
        return (multiply(x, weights) >> 9).astype(jnp.int8)

    return jax.lax.fori_loop(0, ROUNDS, step, x)


def expected(x, weights):
    x, weights = x.astype(np.float32), weights.astype(np.float32)  # exact, because sums are less than 2**24
    for _ in range(ROUNDS):
        x = ((x @ weights).astype(np.int32) >> 9).astype(np.int8).astype(np.float32)
    return x.astype(np.int8)


def main(seed: int, interrupt: bool) -> None:
    instruction_set()
    rng = np.random.default_rng(seed)
    x, weights = (draw.matrix(rng, (1, SIZE, SIZE), np.int8) for _ in range(2))
    program = long_program.lower(x, weights).compile()
    result = expected(x, weights)
    np.testing.assert_array_equal(program(x, weights), result)
    if interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        check_interrupted(lambda: np.asarray(program(x, weights)), result)
        np.testing.assert_array_equal(program(x, weights), result)
    print("right")


def check_interrupted(compute, result: np.ndarray) -> None:
    """The signal arrives in the middle: what is computed nevertheless is right."""
    start = time.perf_counter()
    compute()
    timer = threading.Timer((time.perf_counter() - start) / 2, os.kill, (os.getpid(), signal.SIGINT))
    actual, interrupted = None, False
    try:
        timer.start()
        actual = compute()
        timer.join()
        for _ in range(1000):  # Python handles a signal between two steps of a loop
            time.sleep(0.001)
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    if actual is not None:
        np.testing.assert_array_equal(actual, result)


if __name__ == "__main__":
    main(int(sys.argv[1]), "--interrupt" in sys.argv)
