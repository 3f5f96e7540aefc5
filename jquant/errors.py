"""The exceptions that jquant raises, and how their messages show what was given."""

_LONGEST = 100


class DescriptorError(ValueError):
    """An operand or an argument violates a constraint of the operator's specification."""


class DescriptorTypeError(DescriptorError, TypeError):
    """The data type of an operand, or the type of an argument, violates a constraint of the operator's specification."""


def shown(value: object) -> str:
    """`value` as a message shows it: its `repr`, or the beginning of a long one."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of more digits than Python prints, or any object at all
        return f"of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
