"""The exceptions that jquant raises, and how their messages show what was given."""

_LONGEST = 100


class Error(ValueError):
    """Every error that jquant raises is one of these."""


class DescriptorError(Error):
    """An operand or an argument violates a constraint of the operator's specification."""


class DescriptorTypeError(DescriptorError, TypeError):
    """The data type of an operand, or the type of an argument, violates a constraint of the operator's specification."""


class TransformError(Error):
    """`jquant.transform` cannot transform a function, or one of its arguments is wrong."""


class TransformTypeError(TransformError, TypeError):
    """An argument of `jquant.transform` has the wrong type."""


class ModelError(Error):
    """A file that is not a valid model, a model that is not supported, or an operand that a node cannot take."""


class CheckpointError(Error):
    """A broken file, an unsupported format, or a weight that has no packed form. The message names file and tensor."""


def shown(value: object) -> str:
    """`value` as a message shows it: its `repr`, or the beginning of a long one."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of more digits than Python prints, or any object at all
        return f"of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
