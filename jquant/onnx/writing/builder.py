"""A graph of ONNX while it is written: its nodes, initializers and names."""

import collections
import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN
from jquant.onnx.writing import kernel_types, schemas, sizes
from jquant.onnx.writing.tensor import Size, Tensor, is_static, known

Operand = Tensor | None

_LARGEST_REPEATED = 256  # bytes of an initializer in which an element may repeat often


class OtherSetNeeded(Exception):
    """A node needs another operator set than the one that the graph is written for."""

    def __init__(self, node: str, domain: str, version: int, range: str):
        super().__init__(f"{node} needs version {version} of the operator set {domain or 'ai.onnx'}, {range}")
        self.domain, self.version = domain, version


class NewerSetNeeded(OtherSetNeeded):
    """A node needs a newer operator set than the one that the graph is written for."""

    def __init__(self, node: str, domain: str, version: int):
        super().__init__(node, domain, version, "or a newer one")


class OlderSetNeeded(OtherSetNeeded):
    """A node of a file means something else in the operator set that the graph is written for than in an older one."""

    def __init__(self, node: str, domain: str, version: int):
        super().__init__(node, domain, version, "or an older one")


class Names:
    """Names of values that are all different."""

    def __init__(self):
        self._used: set[str] = set()
        self._numbers: collections.Counter[str] = collections.Counter()

    def new(self, wish: str) -> str:
        """A name that nothing has yet, in letters, digits and points: `wish`, or `wish` with a number."""
        return self.reserve(re.sub(r"[^\w.]+", "_", wish).strip("_") or "value")

    def reserve(self, wish: str) -> str:
        """A name that nothing has yet: `wish` as it is, or with a number."""
        name = wish
        while name in self._used:
            self._numbers[wish] += 1
            name = f"{wish}_{self._numbers[wish]}"
        self._used.add(name)
        return name


class Shared:
    """What all graphs of a model share.

    Attributes:
      versions: the version of each domain's operator set.
      needed: the versions that nodes need.
      domains: the domains that nodes may have, beside ONNX's own.
      form: "exact" or "qdq"; see `export`.
      unroll: whether the steps of a `jax.lax.scan` are written one after the other.
      is_fixed: whether the caller chose the operator set, so that nodes cannot have a newer one.
      widened: by the name of weights, how many bytes fewer they would have in a newer operator set.
      initializers: their elements, by name. `finish` makes messages of those that are read.
    """

    def __init__(
        self, versions: Mapping[str, int], domains: Sequence[str], form: str, unroll: bool = True, is_fixed: bool = False
    ):
        self.versions, self.domains, self.form, self.unroll = dict(versions), tuple(domains), form, unroll
        self.is_fixed, self.widened = is_fixed, {}
        self.needed: dict[str, int] = {}
        self.names = Names()
        self.node_names = Names()  # nodes of files have names of their own
        self.initializers: dict[str, np.ndarray] = {}
        self.sizes: dict[str, tuple[str, int]] = {}  # by the name of an open size: an input, and which dimension it is
        self.unsupported: dict[str, None] = {}  # in order, without repetition
        self._constants: dict[Hashable, str] = {}

    def require(self, node: str, domain: str, since: int, until: int | None = None) -> None:
        """Notes the versions that a node needs.

        Raises:
          NewerSetNeeded, OlderSetNeeded: the model is written for an older one, or for a newer one.
        """
        self.needed[domain] = max(self.needed.get(domain, 1), since)
        if since > self.versions.get(domain, 1):
            raise NewerSetNeeded(node, domain, since)
        if until is not None and self.versions.get(domain, 1) > until:
            raise OlderSetNeeded(node, domain, until)

    def initializer(self, array: np.ndarray, label: str, *, exactly: bool = False) -> str:
        """The name of an initializer with these elements: one for all equal ones that have the same label.

        Args:
          exactly: whether `label` is its name as it stands, unless something else has it.
        """
        elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = (label, array.dtype, array.shape, hashlib.sha256(elements.data).digest())
        if key not in self._constants:
            name = self.names.reserve(label) if exactly else self.names.new(label or "constant")
            self.initializers[name] = array
            self._constants[key] = name
        return self._constants[key]


class Builder:
    """One graph, or the body of a node, which also sees the values of the graphs around it."""

    def __init__(self, shared: Shared, around: "Builder | None" = None):
        self.shared = shared
        self.nodes: list[onnx.NodeProto] = []
        self._scope: str = around._scope if around else ""  # before names
        self._place: tuple[str, ...] = around._place if around else ()  # in messages
        self._sources: tuple[Callable[[], str], ...] = around._sources if around else ()  # likewise
        self._made: collections.ChainMap[Hashable, Any] = around._made.new_child() if around else collections.ChainMap()

    @property
    def version(self) -> int:
        """The version of ONNX's own operator set."""
        return self.shared.versions[DEFAULT_DOMAIN]

    def allows(self, domain: str) -> bool:
        return domain == DEFAULT_DOMAIN or domain in self.shared.domains

    def node(
        self,
        operator: str,
        operands: Sequence[Operand],
        types: Any,
        *,
        domain: str = DEFAULT_DOMAIN,
        since: int = 1,
        label: str = "",
        **attributes: Any,
    ) -> Any:
        """Adds a node.

        Args:
          operands: the inputs; None for one that is left out.
          types: the type of the result, or a sequence with the types of several.
          since: the version of the operator set that the node needs; some types need a later one.
          attributes: those that are None are left out.

        Returns:
          The result, or a list of several.
        """
        several = isinstance(types, list | tuple)
        dtypes = tuple(type.dtype for type in (types if several else [types]))
        given = tuple(None if operand is None else operand.dtype for operand in operands)
        since = schemas.since(operator, domain, since, given, dtypes)
        self.shared.require(f"{operator}{self.place}", domain, since)
        results = [self.result(type, label or operator) for type in (types if several else [types])]
        inputs = ["" if operand is None else self.name(operand) for operand in operands]
        while inputs and not inputs[-1]:
            inputs.pop()
        present = {name: value for name, value in attributes.items() if value is not None}
        names = list(map(self.name, results))
        name = self.shared.node_names.reserve(names[0])
        self.nodes.append(onnx.helper.make_node(operator, inputs, names, domain=domain, name=name, **present))
        return results if several else results[0]

    def result(self, type: Any, label: str) -> Tensor:
        """A value that a node will compute."""
        dtype = type.dtype if jnp.issubdtype(type.dtype, jax.dtypes.extended) else np.dtype(type.dtype)
        return Tensor(dtype, tuple(type.shape), name=self.shared.names.new(f"{self._scope}{label.lower()}"))

    @property
    def place(self) -> str:
        """Where in the function the graph is being written, for messages."""
        return f" (in {'/'.join(self._place)})" if self._place else ""

    @property
    def source(self) -> str:
        """The same, with the function and the line of the caller's code, where they are known."""
        parts = [f"in {'/'.join(self._place)}"] if self._place else []
        known = (found for source in reversed(self._sources) if (found := source()))
        parts += itertools.islice(known, 1)
        return f" ({'; '.join(parts)})" if parts else ""

    @contextlib.contextmanager
    def scope(self, name: str, *, source: Callable[[], str] | None = None, is_repeated: bool = False) -> Iterator[None]:
        """Values that are made inside are named after it: the name of a part of the function, or "".

        A part that is repeated under other names is the same place in the function.

        Args:
          source: returns the function and the line of the caller's code, or "" where those of the scope around are known.
        """
        outer = self._scope, self._place, self._sources
        self._sources = self._sources if source is None else (*self._sources, source)
        if name:
            parts = filter(None, _without_transformations(name).split("/"))
            self._scope = self._scope + "".join(f"{part}." for part in parts)
            self._place = self._place if is_repeated else (*self._place, name)
        try:
            yield
        finally:
            self._scope, self._place, self._sources = outer

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` returns; made once for each key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def derived(self, step: str, value: Tensor, source: Tensor) -> Tensor:
        """Notes that a step made `value` of `source`, so that one more such step can start from there; returns `value`."""
        self._made[step, "origin", value] = source
        return value

    def origin(self, step: str, value: Tensor) -> Tensor | None:
        """What a step made `value` of; None if it did not."""
        return self._made.get((step, "origin", value))

    def name(self, value: Tensor) -> str:
        """The name of a value in the graph, which is written if it has none."""
        if value.name is not None:
            return value.name
        if value.small is not None:
            small, shape = value.small, value.shape
            return self.name(self.once(("expand", value), lambda: self._expanded(small, shape)))
        assert value.known is not None
        return self.once(("constant", value), lambda: self._constant(value))

    def _constant(self, value: Tensor) -> str:
        assert value.known is not None
        compact = without_repetition(value.known)
        if compact.size * 8 < value.known.size and value.known.nbytes > _LARGEST_REPEATED:
            return self.name(self._expanded(known(compact, value.label), value.shape))
        return self.shared.initializer(value.known, value.label)

    def _expanded(self, value: Tensor, shape: Sequence[Size]) -> Tensor:
        dtype, _ = kernel_types.choice("Expand", value.dtype)
        type = jax.ShapeDtypeStruct(shape, dtype)
        expanded = self.node("Expand", [self._converted(value, dtype), self.shape(shape)], type, since=8, label="expanded")
        return self._converted(expanded, value.dtype)

    def _converted(self, value: Tensor, dtype: np.dtype) -> Tensor:
        """The same elements in another type that holds them."""
        if value.dtype == dtype:
            return value
        to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return self.node("Cast", [value], jax.ShapeDtypeStruct(value.shape, dtype), since=9, to=to)

    def broadcastable(self, value: Tensor) -> Tensor:
        """A value that broadcasts to `value`: without elements that repeat others, where that is known."""
        if value.small is not None:
            return value.small
        if value.known is not None and value.known.size > 1:
            compact = without_repetition(value.known)
            if compact.size < value.known.size:
                return self.once(("compact", value), lambda: known(compact, value.label))
        return value

    def shape(self, shape: Sequence[Size]) -> Tensor:
        """Sizes as a tensor, int64: known, or computed from the shapes of inputs."""
        if is_static(shape):
            return known(np.asarray(shape, np.int64).reshape(len(shape)))
        parts = [self.size(size) for size in shape]
        if len(parts) == 1:
            return parts[0]
        return self.once(
            ("shape", tuple(map(str, shape))),
            lambda: self.node(
                "Concat", parts, jax.ShapeDtypeStruct((len(parts),), np.int64), axis=0, since=4, label="shape"
            ),
        )

    def size(self, size: Size) -> Tensor:
        """A size as a tensor of one element, int64."""
        if isinstance(size, int):
            return known(np.array([size], np.int64))
        return self.once(("size", str(size)), lambda: sizes.written(self, size))

    def attempt(self, write: Callable[[], Any]) -> Any:
        """What `write` returns; if it is None, nothing that it wrote stays."""
        count, made = len(self.nodes), self._made
        self._made = made.new_child()
        try:
            result = write()
        finally:
            self._made, attempted = made, self._made.maps[0]
        if result is None:
            del self.nodes[count:]
        else:
            made.update(attempted)
        return result

    def body(self) -> "Builder":
        """A graph inside a node of this one."""
        return Builder(self.shared, self)


def _without_transformations(name: str) -> str:
    """The names of parts of a function in a name of JAX, such as "jvp(block)/vmap()/scores"."""
    while (inner := re.sub(r"\w+\(([^()]*)\)", r"\1", name)) != name:
        name = inner
    return name


def without_repetition(array: np.ndarray) -> np.ndarray:
    """The array with size 1 in the dimensions along which memory is not advanced, in which elements repeat."""
    index = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for stride, size in zip(array.strides, array.shape, strict=True)
    )
    return array[index]
