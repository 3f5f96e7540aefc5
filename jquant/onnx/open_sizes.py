"""What JAX says of sizes that a program leaves open, in the terms of a constraint that would decide about them."""

import re

_COMPARISON = re.compile(r"Symbolic dimension comparison '(.+?)' ([<>]=?) '(.+?)' is inconclusive")
_SMALLER_OR_LARGER = re.compile(r"\b(?:min|max)\((\w+), (\w+)\)")


def undecided(error: str) -> str | None:
    """The comparison in a message of JAX, as a constraint: as it is there, or taken from inside min or max."""
    found = _COMPARISON.search(error)
    if found is not None:
        left, operator, right = found.groups()
        if operator in "<>":  # constraints only have comparisons that include equality
            operator, right = operator + "=", _next(right, 1 if operator == ">" else -1)
        return f"{left} {operator} {right}"
    found = _SMALLER_OR_LARGER.search(error)
    if found is not None:
        left, right = sorted(found.groups(), key=str.isdecimal)
        return f"{left} <= {right}"
    return None


def _next(expression: str, step: int) -> str:
    return str(int(expression) + step) if expression.isdecimal() else f"{expression} {'+' if step > 0 else '-'} 1"
