"""How errors name an operator and its arguments: as the caller writes them, and then as the specification does."""

import re


class Operator(str):
    """An operator whose specification has its own names. The string is the name of the public function.

    Attributes:
      document: the operator's name in the specification; empty if the operator is jquant's own.
      output: the name of its output in the specification.
    """

    document: str
    output: str

    def __new__(cls, function: str, document: str = "", *, output: str = "OutputTensor") -> "Operator":
        self = super().__new__(cls, function)
        self.document, self.output = document, output
        return self


def argument(operator: str, name: str) -> str:
    """The function's argument that the specification calls `name`, or that has this name: for AScaleTensor, a_scale."""
    if not isinstance(operator, Operator):
        return name
    words, output = _in_words(name), _in_words(operator.output)
    if words == output:
        return "the output"
    return f"output{words.removeprefix(output)}" if words.startswith(f"{output}_") else words


def _in_words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.removesuffix("Tensor")).lower()


def message(operator: str, name: str, text: str, *others: str) -> str:
    """An error about an argument: "matmul_integer: b is ... (BTensor of DML_MATRIX_MULTIPLY_INTEGER)".

    Args:
      operator: the function that was called.
      name: the argument, as it or as the specification calls it.
      text: what is wrong with it, and what would be right.
      others: other tensors that the text names, in the specification's words.
    """
    tensors = " and ".join(tensor for tensor in (name, *others) if argument(operator, tensor) != tensor)
    document = operator.document if isinstance(operator, Operator) else ""
    named = f" ({tensors} of {document})" if tensors and document else f" ({document})" if document else ""
    return f"{operator}: {argument(operator, name)} {text}{named}"
