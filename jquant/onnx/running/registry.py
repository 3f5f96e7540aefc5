"""The table of converters: the JAX function for each ONNX operator, by domain, name and version."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import onnx

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, Node

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TABLE: dict[tuple[str, str], list["Converter"]] = {}
_CONTEXT = frozenset({"xp", "outputs", "where", "unrolled"})  # keywords that the evaluation passes, not attributes
_RANDOM = "its numbers are random, and no two libraries draw the same ones"
_BLOCKED = "its layout is that of one processor; let onnxruntime save the file with extended optimizations at most"
REFUSED = {  # why operators have no converter
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


class AttributeGroup:
    """The base of a dataclass of attributes that several operators have. A converter takes them as one keyword."""


@dataclasses.dataclass(frozen=True, eq=False)
class Converter:
    """A function that computes an operator, and how it must be called.

    Attributes:
      function: takes the operands by position, with None for one that is left out, and the attributes by their names in
        ONNX, or in an `AttributeGroup`, if a keyword's annotation is one. If it has these keywords, it also gets
        ``outputs``, the number of outputs; ``xp``, NumPy or `jax.numpy`; ``where``, the caller's mask that matches the
        first operand; ``unrolled``, whether a result, or an input of the node's subgraphs, must be known while tracing.
        The operands of a node with subgraphs are passed as they are.
      since, until: the first and the last version of the operator set that the function is for.
      static: the names of operands that must be NumPy arrays, because the shapes of a program depend on them.
      prefers_static: the names of operands that are NumPy arrays whenever they can be.
      packs: the zero point's operand, by the operand that is an integer matrix.
      transposed_by: the attribute that says whether to transpose this matrix; a packed one is transposed already.
      packs_blocks: whether its operands and attributes are those of onnxruntime's MatMulNBits.
      packs_widened: whether its operands and attributes are those of `fusing.widened_weights`.
      counterparts: the operators of jquant that have the node's formula, or its purpose with another one.
      expands: whether results may be far larger than the operands, so that NumPy computes only those that must be static.
    """

    function: Callable[..., Any]
    since: int = 1
    until: int | None = None
    static: frozenset[str] = frozenset()
    prefers_static: frozenset[str] = frozenset()
    packs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transposed_by: str | None = None
    packs_blocks: bool = False
    packs_widened: bool = False
    expands: bool = False
    counterparts: tuple[str, ...] = ()

    def __post_init__(self):
        parameters = inspect.signature(self.function).parameters.values()
        keywords = frozenset(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
        groups = {each.name: each.annotation for each in parameters if _is_group(each.annotation)}
        grouped = {field.name for group in groups.values() for field in dataclasses.fields(group)}
        derived = {
            "operands": tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY),
            "takes_rest": any(each.kind is each.VAR_POSITIONAL for each in parameters),
            "context": keywords & _CONTEXT,
            "attributes": keywords - _CONTEXT - groups.keys() | grouped,
            "_groups": groups,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    operands: tuple[str, ...] = dataclasses.field(init=False)
    takes_rest: bool = dataclasses.field(init=False)
    context: frozenset[str] = dataclasses.field(init=False)
    attributes: frozenset[str] = dataclasses.field(init=False)
    _groups: Mapping[str, Any] = dataclasses.field(init=False)

    def call(self, operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """The results, from operands, and from attributes and context by their names."""
        rest = dict(keywords)
        for name, group in self._groups.items():
            rest[name] = group(**{each.name: rest.pop(each.name) for each in dataclasses.fields(group) if each.name in rest})
        return self.function(*operands, **rest)

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


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, AttributeGroup)


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
    packs_widened: bool = False,
    expands: bool = False,
    counterparts: tuple[str, ...] = (),
) -> Callable[[_Function], _Function]:
    """Adds the decorated function to the table, and returns it unchanged. The arguments are those of `Converter`."""

    def register(function: _Function) -> _Function:
        entry = Converter(
            function=function,
            since=since,
            until=until,
            static=frozenset(static),
            prefers_static=frozenset(prefers_static),
            packs=packs or {},
            transposed_by=transposed_by,
            packs_blocks=packs_blocks,
            packs_widened=packs_widened,
            expands=expands,
            counterparts=counterparts,
        )
        _TABLE.setdefault((domain, operator), []).append(entry)
        return function

    return register


def find(node: Node) -> Converter | None:
    """The converter for a node's operator and version; None if there is none."""
    for entry in _TABLE.get((node.domain, node.operator), ()):
        if entry.since <= node.version and (entry.until is None or node.version <= entry.until):
            return entry
    return None


def operators() -> list[tuple[str, str]]:
    """The domain and the name of every operator in the table that can occur in a file."""
    return sorted(key for key in _TABLE if key[0] != JQUANT)


def counterparts(operator: str) -> list[tuple[str, str]]:
    """The domain and the name of every node that does what an operator of jquant does, with its formula or another one.

    A node of another domain with a name of ONNX's own is left out.
    """
    keys = [key for key, entries in _TABLE.items() if any(operator in entry.counterparts for entry in entries)]
    return sorted(key for key in keys if key[0] == DEFAULT_DOMAIN or (DEFAULT_DOMAIN, key[1]) not in keys)


def attributes(node: Node, entry: Converter) -> tuple[dict[str, Any], list[str]]:
    """The attributes to call a converter with, and the names of those that it does not know.

    The schema's defaults are filled in. An unknown attribute that has its default value is not reported.
    """
    defaults = _defaults(node.domain, node.operator, node.version)
    known = {name: value for name, value in {**defaults, **node.attributes}.items() if name in entry.attributes}
    unknown = [name for name in node.attributes if name not in entry.attributes]
    return known, [name for name in unknown if name not in defaults or defaults[name] != node.attributes[name]]


@functools.cache
def _defaults(domain: str, operator: str, version: int) -> Mapping[str, Any]:
    try:
        return schema_defaults(onnx.defs.get_schema(operator, version, domain))
    except onnx.defs.SchemaError:
        return {}


def schema_defaults(schema: onnx.defs.OpSchema) -> dict[str, Any]:
    """The default values of attributes, for those that have one."""
    protos = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    values = {name: onnx.helper.get_attribute_value(proto) for name, proto in protos.items() if proto.name}
    return {name: _decoded(value) for name, value in values.items()}


def _decoded(value: Any) -> Any:
    """`value`, with bytes as strings, also in lists."""
    if isinstance(value, list):
        return [_decoded(element) for element in value]
    return value.decode() if isinstance(value, bytes) else value
