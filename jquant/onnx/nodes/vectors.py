"""Vectors in the shape that broadcasts to a tensor."""


def along_axis(values, axis, rank):
    """A vector as an array of `rank` dimensions that varies along one of them."""
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])
