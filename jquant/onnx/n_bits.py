"""The attributes of onnxruntime's MatMulNBits."""

from typing import Any, NamedTuple

from jquant.errors import ModelError


class Sizes(NamedTuple):
    """The sizes of a matrix in blocks.

    Attributes:
      rows, columns: of the matrix.
      bits: of an element.
      block_size: how many rows share a scale.
    """

    rows: int
    columns: int
    bits: int
    block_size: int


def sizes(K: Any = None, N: Any = None, bits: Any = 4, block_size: Any = None) -> Sizes:
    """The sizes that the attributes of a MatMulNBits state.

    Raises:
      ModelError: an attribute that is missing, or that no matrix can have.
    """
    for name, value in {"K": K, "N": N, "block_size": block_size}.items():
        if type(value) is not int or value < 1:
            actual = "missing" if value is None else str(value)
            raise ModelError(f"its attribute {name} is {actual}; it must be a positive integer")
    if type(bits) is not int or bits not in (2, 4, 8):
        raise ModelError(f"its attribute bits is {bits}; supported are 2, 4 and 8")
    if block_size * bits % 8:
        raise ModelError(
            f"its attribute block_size is {block_size}; blocks of integers of {bits} bits must fill whole bytes"
        )
    return Sizes(rows=K, columns=N, bits=bits, block_size=block_size)
