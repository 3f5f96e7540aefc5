"""Sizes of parts that divide a size."""


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` up to `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)
