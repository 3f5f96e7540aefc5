"""A call for whose intermediate results there is not enough memory is refused; what follows is right."""

import re
import resource
import sys

import jax
import numpy as np
from calls import Call, check, function, instruction_set, operands

DEPTH = 2**26  # times the columns of a tile or the rows of A, more than is left


def address_space() -> int:
    with open("/proc/self/status") as status:
        return int(re.search(r"VmSize:\s*(\d+) kB", status.read())[1]) * 1024


def main(depth_minor: bool) -> None:
    instruction_set()
    b_shape = (1, 1, DEPTH) if depth_minor else (1, DEPTH, 1)
    call = Call(np.zeros((1, 1, DEPTH), np.int8), np.zeros(b_shape, np.int8), depth_minor=depth_minor)
    small = Call(np.ones((1, 3, 5), np.int8), np.ones((1, 5, 4), np.int8))
    check(small)
    arrays = jax.device_put(operands(call))
    program = jax.jit(function(call)).lower(arrays).compile()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + 2**24, limits[1]))
    try:
        jax.block_until_ready(program(arrays))
        print("computed")
    except jax.errors.JaxRuntimeError as error:
        print("refused" if "jquant-native: there is not enough memory" in str(error) else error)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    check(small)
    print("right")


if __name__ == "__main__":
    main("--depth-minor" in sys.argv)
