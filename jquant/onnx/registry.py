"""The table of converters: which JAX function computes an operator, by domain, name and version."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import onnx

from jquant.onnx.graph import DEFAULT_DOMAIN, JQUANT, Node

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TABLE: dict[tuple[str, str], list["Converter"]] = {}
_CONTEXT = frozenset({"xp", "outputs", "where", "unrolled"})  # keywords that the evaluation passes, not attributes
_RANDOM = "its numbers are random, and no two libraries draw the same ones"
_BLOCKED = "its layout is that of one processor; let onnxruntime save the file with extended optimizations at most"
REFUSED = {  # operators that have no converter, with the reason
    "Bernoulli": _RANDOM,
    "Multinomial": _RANDOM,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "com.microsoft.nchwc.AveragePool": _BLOCKED,
    "com.microsoft.nchwc.Conv": _BLOCKED,
    "com.microsoft.nchwc.GlobalAveragePool": _BLOCKED,
    "com.microsoft.nchwc.GlobalMaxPool": _BLOCKED,
    "com.microsoft.nchwc.MaxPool": _BLOCKED,
    "com.microsoft.nchwc.ReorderInput": _BLOCKED,
    "com.microsoft.nchwc.ReorderOutput": _BLOCKED,
    "com.microsoft.nchwc.Upsample": _BLOCKED,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Converter:
    """A function that computes an operator, and what there is to know about it.

    Attributes:
      function: takes the operands by position, None for one that is left out, and the attributes by their names in ONNX. If
        it has these keywords, it is also given ``outputs``, the number of outputs; ``xp``, NumPy or `jax.numpy`; ``where``,
        the caller's mask that fits the first operand; ``unrolled``, whether something inside the node's subgraphs, or a
        result, must be known while tracing. The operands of a node with subgraphs are passed as they are.
      since, until: the operator sets for which it is right.
      static: the names of operands that are NumPy arrays, because the shapes of a program depend on them.
      prefers_static: those that are NumPy arrays whenever they can be.
      packs: an operand that is an integer matrix, and the operand that is its zero point.
      transposed_by: the attribute that says that this matrix is to be transposed; a packed one already is.
      packs_blocks: whether its operands and attributes are those of onnxruntime's MatMulNBits.
      expands: its results may be far larger than its operands, so NumPy computes only those that have to be static.
    """

    function: Callable[..., Any]
    since: int = 1
    until: int | None = None
    static: frozenset[str] = frozenset()
    prefers_static: frozenset[str] = frozenset()
    packs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transposed_by: str | None = None
    packs_blocks: bool = False
    expands: bool = False

    def __post_init__(self):
        parameters = inspect.signature(self.function).parameters.values()
        operands = tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY)
        keywords = frozenset(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
        takes_rest = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        for name, value in (("operands", operands), ("takes_rest", takes_rest)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "context", keywords & _CONTEXT)
        object.__setattr__(self, "attributes", keywords - _CONTEXT)

    operands: tuple[str, ...] = dataclasses.field(init=False)
    takes_rest: bool = dataclasses.field(init=False)
    context: frozenset[str] = dataclasses.field(init=False)
    attributes: frozenset[str] = dataclasses.field(init=False)

    @property
    def folds(self) -> bool:
        """Whether it computes NumPy arrays from NumPy arrays."""
        return "xp" in self.context

    def position(self, operand: str) -> int:
        return self.operands.index(operand)

    def operand(self, position: int) -> str:
        """The name of the operand at a position; "" if the operator has none there."""
        if not self.operands:
            return ""
        return self.operands[min(position, len(self.operands) - 1)]


def converter(
    operator: str,
    *,
    domain: str = DEFAULT_DOMAIN,
    since: int = 1,
    until: int | None = None,
    static: tuple[str, ...] = (),
    prefers_static: tuple[str, ...] = (),
    packs: Mapping[str, str] | None = None,
    transposed_by: str | None = None,
    packs_blocks: bool = False,
    expands: bool = False,
) -> Callable[[_Function], _Function]:
    """Adds the decorated function to the table, and returns it unchanged. The arguments are those of `Converter`."""

    def enter(function: _Function) -> _Function:
        operands = frozenset(static), frozenset(prefers_static), packs or {}, transposed_by, packs_blocks
        entry = Converter(function, since, until, *operands, expands)
        _TABLE.setdefault((domain, operator), []).append(entry)
        return function

    return enter


def find(node: Node) -> Converter | None:
    """The converter of a node's operator and version."""
    for entry in _TABLE.get((node.domain, node.operator), ()):
        if entry.since <= node.version and (entry.until is None or node.version <= entry.until):
            return entry
    return None


def operators() -> list[tuple[str, str]]:
    """(domain, operator) of everything in the table that can occur in a file."""
    return sorted(key for key in _TABLE if key[0] != JQUANT)


def arguments(node: Node, entry: Converter) -> tuple[dict[str, Any], list[str]]:
    """The attributes with which to call a converter, and those that it does not know.

    The schema's defaults are filled in. An unknown attribute that has its default value is not reported.
    """
    defaults = _defaults(node.domain, node.operator, node.version)
    given = {name: value for name, value in (defaults | dict(node.attributes)).items() if name in entry.attributes}
    unknown = [name for name in node.attributes if name not in entry.attributes]
    return given, [name for name in unknown if name not in defaults or defaults[name] != node.attributes[name]]


def _defaults(domain: str, operator: str, version: int) -> dict[str, Any]:
    try:
        return schema_defaults(onnx.defs.get_schema(operator, version, domain))
    except onnx.defs.SchemaError:
        return {}


def schema_defaults(schema: onnx.defs.OpSchema) -> dict[str, Any]:
    """The attributes that have a default."""
    found = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.name}
    values = {name: onnx.helper.get_attribute_value(value) for name, value in found.items()}
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> Any:
    """Strings, which are bytes in the schema, and lists of strings, as text."""
    if isinstance(value, list):
        return [_text(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value
