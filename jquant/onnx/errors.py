"""The error raised when a model cannot be read, is not supported, or is called with invalid arguments."""


class ModelError(ValueError):
    """A file that is not a valid model, a model that is not supported, or an operand that a node cannot take."""
