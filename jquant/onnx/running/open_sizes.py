"""Turns JAX's errors about symbolic dimensions into the constraints of `jax.export` that would resolve them."""

import re

_COMPARISON = re.compile(r"Symbolic dimension comparison '(.+?)' ([<>]=?) '(.+?)' is inconclusive")
_SMALLER_OR_LARGER = re.compile(r"\b(?:min|max)\((\w+), (\w+)\)")


def undecided(error: str) -> str | None:
    """The comparison that JAX could not decide, according to its error, as a constraint; None if the error is another.

    A comparison may be inside of min or max.
    """
    match = _COMPARISON.search(error)
    if match is not None:
        left, operator, right = match.groups()
        if operator in "<>":  # constraints only have comparisons that include equality
            operator, right = operator + "=", _next(right, 1 if operator == ">" else -1)
        return f"{left} {operator} {right}"
    match = _SMALLER_OR_LARGER.search(error)
    if match is not None:
        left, right = sorted(match.groups(), key=str.isdecimal)
        return f"{left} <= {right}"
    return None


def _next(expression: str, step: int) -> str:
    return str(int(expression) + step) if expression.isdecimal() else f"{expression} {'+' if step > 0 else '-'} 1"
