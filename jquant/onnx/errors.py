"""What is raised where a model cannot be read, is not supported, or is called with what it does not take."""


class ModelError(ValueError):
    """A file that is no valid model, a model that is not supported, or an operand that a node cannot take."""
