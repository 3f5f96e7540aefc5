"""The exceptions that jquant raises."""


class DescriptorError(ValueError):
    """An operand or an argument violates a constraint of the operator's document."""


class DescriptorTypeError(DescriptorError, TypeError):
    """The data type of an operand violates a constraint of the operator's document."""
