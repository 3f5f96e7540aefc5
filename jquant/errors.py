"""The exceptions that jquant raises, and the representation of values in their messages."""

_MAX_LENGTH = 100


class Error(ValueError):
    """The base class of the errors that jquant raises."""


class DescriptorError(Error):
    """An operand or an argument violates a constraint of the operator's specification."""


class DescriptorTypeError(DescriptorError, TypeError):
    """The data type of an operand, or the type of an argument, violates a constraint of the operator's specification."""


class TransformError(Error):
    """`jquant.transform` cannot transform a function, or one of its arguments is wrong."""


class TransformTypeError(TransformError, TypeError):
    """An argument of `jquant.transform` has the wrong type."""


class ModelError(Error):
    """An invalid file, a model that is not supported, or an operand that a node does not accept."""


class HostError(Error):
    """`jquant.host` cannot write a program for a host without jquant, or one of its arguments is wrong."""


class CheckpointError(Error):
    """A broken file, an unsupported format, or a weight that has no packed form. The message names file and tensor."""


def shown(value: object) -> str:
    """The representation of a value in a message: its `repr`, truncated if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of more digits than Python prints, or any object at all
        return f"of type {type(value).__name__}"
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
