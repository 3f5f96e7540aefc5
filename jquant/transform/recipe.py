"""Recipes: how the sites of a function are quantized, as data."""

import dataclasses
import enum
import fnmatch
import json
from collections.abc import Sequence
from typing import Any, Self

from jquant import calibration
from jquant.arguments.statics import integer, is_sequence
from jquant.calibration.observer import Observer
from jquant.errors import TransformError, TransformTypeError, shown
from jquant.modes import ScaleGranularity, data_type, data_type_name, scale_granularity
from jquant.transform.checks import as_transform_errors

_OBSERVERS = {
    "min_max": calibration.min_max,
    "moving_average": calibration.moving_average,
    "percentile": calibration.percentile,
    "entropy": calibration.entropy,
    "mean_squared_error": calibration.mean_squared_error,
}


class Activations(enum.StrEnum):
    """Where the scale of a site's input comes from. The strings are accepted as well.

    - ``STATIC``: from calibration; a constant of the quantized function.
    - ``DYNAMIC``: from the range of the tensor, at each call.
    - ``DYNAMIC_ROW``: from the range of each row of a product (a token), at each call; symmetric int8. A convolution, whose
      windows share rows, uses the range of the tensor.
    - ``FLOAT``: there is none. Only the weights are quantized, and the product is computed in float.
    """

    STATIC = "STATIC"
    DYNAMIC = "DYNAMIC"
    DYNAMIC_ROW = "DYNAMIC_ROW"
    FLOAT = "FLOAT"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise _unknown("activations", value, cls)


def _unknown(name: str, value: object, choices: type[enum.StrEnum]) -> TransformError:
    error = TransformError if isinstance(value, str) else TransformTypeError
    return error(f"Scheme: {name} is {shown(value)}; choose one of {', '.join(choices)}")


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How one site is quantized.

    Weights are symmetric integers, from -127 to 127 in 8 bits. They are quantized as the parameters hold them: a cast
    between the parameter and the product, to bfloat16 for example, is applied after the quantization.

    Attributes:
      weights: ``"PER_CHANNEL"``, a scale for each output channel (and for each row of an embedding table), or
        ``"PER_TENSOR"``. Weights that a `jax.lax.scan` stacks have their own scales in each layer.
      weight_type: ``"INT8"``; or ``"INT4"``, from -7 to 7; or ``"INT2"``, from -1 to 1. All are stored as int8: the smaller
        types save no bytes, but show how a network behaves with fewer bits, and train it for them.
      activations: where the scale of the input comes from.
      activation_type: ``"UINT8"``, with a zero point, or ``"INT8"``, symmetric: 127 steps on each side of 0 (values further
        below a static range saturate at -128).
      observer: how calibration observes the input: the name of a function of `jquant.calibration`, or a list of that name
        and positional arguments, such as ``("percentile", 99.99)``.

    Raises:
      TransformError: an unknown string, or arguments that the observer does not take.
      TransformTypeError: an argument of the wrong type.

    Example:
      >>> from jquant import transform
      >>> transform.Scheme(activations="DYNAMIC", activation_type="INT8")
      Scheme(weights='PER_CHANNEL', weight_type='INT8', activations='DYNAMIC', activation_type='INT8', observer=('min_max',))
    """

    weights: ScaleGranularity | str = ScaleGranularity.PER_CHANNEL
    weight_type: str = "INT8"
    activations: Activations | str = Activations.STATIC
    activation_type: str = "UINT8"
    observer: str | Sequence[Any] = "min_max"

    @as_transform_errors()
    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", scale_granularity("weights", self.weights))
        object.__setattr__(self, "activations", Activations(self.activations))
        for name, allowed in {"weight_type": ("INT8", "INT4", "INT2"), "activation_type": ("UINT8", "INT8")}.items():
            dtype = data_type_name(data_type(name, getattr(self, name)))
            if dtype not in allowed:
                raise TransformTypeError(f"Scheme: {name} is {dtype}; it must be one of {', '.join(allowed)}")
            object.__setattr__(self, name, dtype)
        observer = (self.observer,) if isinstance(self.observer, str) else self.observer
        if not is_sequence(observer) or not observer or observer[0] not in _OBSERVERS:
            names = ", ".join(_OBSERVERS)
            message = (
                f"Scheme: observer is {shown(self.observer)}; it must be one of {names}, or a list of that and its arguments"
            )
            raise TransformError(message)
        object.__setattr__(self, "observer", tuple(observer))
        self.make_observer()  # which checks the arguments

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in _plain(self).items())
        return f"Scheme({', '.join(fields)})"

    @property
    def is_symmetric(self) -> bool:
        """Whether the input has no zero point."""
        return self.activation_type == "INT8" or self.activations == Activations.DYNAMIC_ROW

    def make_observer(self) -> Observer:
        """The observer of an input."""
        name, *arguments = self.observer
        try:
            return _OBSERVERS[name](*arguments)
        except TypeError as error:
            raise TransformTypeError(f"Scheme: observer is {shown(self.observer)}: {shown(error)}") from error


def _plain(scheme: Scheme) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, str) else value for name, value in vars(scheme).items()}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which sites of a function are quantized, and how.

    Attributes:
      rules: pairs of a pattern and a `Scheme`, or None to leave the site in float. The first rule whose pattern is the kind
        of the site (``"matmul"``, ``"convolution"`` or ``"embedding"``) or matches its name applies; in names, ``*`` matches
        anything. A site that no pattern matches stays float.
      smallest: the fewest elements that weights must have to be quantized.

    Raises:
      TransformError: no rules, or a negative `smallest`.
      TransformTypeError: rules that are not pairs of a string and a `Scheme` or None.

    Example:
      >>> from jquant import transform
      >>> recipe = transform.Recipe((("head/*", None), ("*", transform.Scheme())))
      >>> transform.Recipe.from_json(recipe.to_json()) == recipe
      True
    """

    rules: Sequence[tuple[str, Scheme | None]]
    smallest: int = 256

    @as_transform_errors()
    def __post_init__(self) -> None:
        rules = self.rules
        if not is_sequence(rules) or not all(map(_is_rule, rules)):
            wanted = "it must be a list of pairs of a pattern and a Scheme, or None"
            raise TransformTypeError(f"Recipe: rules is {shown(rules)}; {wanted}")
        if not rules:
            raise TransformError("Recipe: rules is empty, so that nothing would be quantized")
        object.__setattr__(self, "rules", tuple(map(tuple, rules)))
        smallest = integer("Recipe", "smallest", self.smallest, range(2**31), "a number of elements")
        object.__setattr__(self, "smallest", smallest)

    def rule_for(self, name: str, kind: str) -> int | None:
        """The index of the first rule that matches a site."""
        for index, (pattern, _) in enumerate(self.rules):
            if kind == pattern or fnmatch.fnmatchcase(name, pattern):
                return index
        return None

    def to_json(self) -> str:
        """The recipe as text, which `from_json` reads."""
        rules = [[pattern, None if scheme is None else _plain(scheme)] for pattern, scheme in self.rules]
        return json.dumps({"rules": rules, "smallest": self.smallest})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recipe that `to_json` wrote. Any other text raises a `TransformError`."""
        if not isinstance(text, str | bytes | bytearray):
            raise TransformTypeError(f"Recipe.from_json: text is {shown(text)}; it must be a string")
        try:
            fields = json.loads(text)
            rules = [(pattern, None if scheme is None else Scheme(**scheme)) for pattern, scheme in fields["rules"]]
            return cls(rules=rules, smallest=fields["smallest"])
        except TransformError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            message = f"Recipe.from_json: text is {shown(text)}; it must be what Recipe.to_json returns"
            raise TransformError(message) from error


def _is_rule(rule: object) -> bool:
    return is_sequence(rule) and len(rule) == 2 and isinstance(rule[0], str) and isinstance(rule[1], Scheme | None)


static_int8 = Recipe([("*", Scheme())])
dynamic_int8 = Recipe([("*", Scheme(activations=Activations.DYNAMIC))])
weight_only_int8 = Recipe([("*", Scheme(activations=Activations.FLOAT))])
