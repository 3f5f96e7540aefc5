"""int8 arrays to and from PyTorch, through DLPack: the same memory, no copy.

pip install . torch
python examples/recipes/dlpack_torch.py
"""

import jax
import numpy as np
import torch

import jquant


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """The tensor's memory as a JAX array; an error if that would take a copy."""
    return jax.dlpack.from_dlpack(tensor.detach(), copy=False)


def address(array: jax.Array) -> int:
    return array.unsafe_buffer_pointer()


def main() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (16, 256), dtype=torch.uint8)
    weight = torch.randint(-128, 128, (64, 256), dtype=torch.int8)  # PyTorch has (outputs, inputs)

    ours, our_weight = to_jax(x), to_jax(weight)
    product = jquant.matmul_integer(ours, our_weight.T, 128)
    clipped = jquant.clip(our_weight, -8, 7)
    theirs, their_clipped = torch.from_dlpack(product), torch.from_dlpack(clipped)

    for array, tensor in ((ours, x), (our_weight, weight), (product, theirs), (clipped, their_clipped)):
        assert address(array) == tensor.data_ptr(), "copied"
    expected = (x.to(torch.int32) - 128) @ weight.to(torch.int32).T
    np.testing.assert_array_equal(theirs.numpy(), expected.numpy())
    np.testing.assert_array_equal(their_clipped.numpy(), weight.clamp(-8, 7).numpy())
    print("uint8 and int8 to JAX, int32 and int8 back: the same addresses, the same integers as PyTorch's")

    memory = torch.zeros(4096 + 64, dtype=torch.uint8)
    first = -memory.data_ptr() % 64
    for offset in (0, 1, 16, 32, 64):
        part = memory[first + offset :][:4096]
        copied = address(jax.dlpack.from_dlpack(part)) != part.data_ptr()
        print(f"{offset:>2} bytes past a multiple of 64: {'copied' if copied else 'shared'}")


if __name__ == "__main__":
    main()
