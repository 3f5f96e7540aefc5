"""The arrays that the quantized parameters hold for the choices of sites, and their bytes."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from jquant.transform.choosing.choices import Choices
from jquant.transform.program.layouts import input_quantizer
from jquant.transform.program.parameters import size_in_bytes
from jquant.transform.rewriting.rewrite import Resources


class StoredArrays(NamedTuple):
    """What is stored for choices.

    Attributes:
      always: the bytes of what is stored whatever is chosen.
      sizes: the bytes of each other array.
      needs: which of these each choice of a site needs, from choice 0 on, by the name of the site.
    """

    always: int
    sizes: Mapping[Hashable, int]
    needs: Mapping[str, Sequence[frozenset[Hashable]]]

    def bytes(self, numbers: Sequence[int]) -> int:
        """The bytes of all parameters, if the sites choose these numbers."""
        chosen = (needs[number] for needs, number in zip(self.needs.values(), numbers, strict=True))
        return self.always + sum(self.sizes[need] for need in frozenset().union(*chosen))


def stored_arrays(choices: Choices, resources: Resources, leaves: Sequence[Any], kept: Collection[int]) -> StoredArrays:
    """What is stored for choices.

    Args:
      choices, resources: the sites, and what they read.
      leaves: the parameters.
      kept: the numbers of those that are stored even if no site is float.
    """
    same = _same(choices)
    sizes: dict[Hashable, int] = {}
    needs: dict[str, list[frozenset[Hashable]]] = {}
    for name, options in choices.options.items():
        floats = [number for number in options[0].site.weights.leaves if number not in kept]
        sizes.update((number, size_in_bytes(leaves[number])) for number in floats)
        needs[name] = [frozenset(floats)]
        for (_, site), *arrays in zip(options, resources.stored[name], resources.static[name], strict=True):
            keys = [same.first((site.storage, name))]
            if site.has_static_input:
                keys.append(same.first((_quantizer(site), name)))
            sizes.update(zip(keys, map(size_in_bytes, arrays), strict=False))
            needs[name].append(frozenset(keys))
    return StoredArrays(sum(size_in_bytes(leaves[number]) for number in kept), sizes, needs)


def _quantizer(site: Any) -> Hashable:
    return input_quantizer(site.kind, site.equation, site.input_operand, site.scheme)


def _same(choices: Choices) -> "_Classes":
    """Which sites store the same weights in the same way, or quantize the same input in the same way.

    Each plan says so for the sites that take one candidate. Two candidates may store, or quantize, in the same way.
    """
    classes = _Classes()
    for options in choices.options.values():
        for _, site in options:
            classes.join((site.storage, site.name), (site.storage, site.stored))
            if site.has_static_input:
                classes.join((_quantizer(site), site.name), (_quantizer(site), site.input))
    return classes


class _Classes:
    """Classes of keys that stand for the same."""

    def __init__(self) -> None:
        self._members: dict[Hashable, list[Hashable]] = {}

    def first(self, key: Hashable) -> Hashable:
        """The member that stands for the class of a key."""
        return self._members.setdefault(key, [key])[0]

    def join(self, key: Hashable, other: Hashable) -> None:
        """Makes one class of those of two keys."""
        if self.first(key) == self.first(other):
            return
        joined = self._members[other] + self._members[key]
        self._members.update((member, joined) for member in joined)
