"""Recipes: how the sites of a function are quantized, as data."""

import dataclasses
import enum
import fnmatch
import json
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from jquant import calibration
from jquant.arguments.statics import boolean, integer, is_sequence
from jquant.calibration.observer import Observer
from jquant.errors import DescriptorTypeError, TransformError, TransformTypeError, shown
from jquant.modes import ScaleGranularity, data_type, data_type_name
from jquant.transform.formats import weight_formats
from jquant.transform.formats.stored_weights import FilterFormat, WeightFormat
from jquant.transform.recipes import preparation
from jquant.transform.recipes.checks import as_transform_errors
from jquant.transform.recipes.preparation import Preparation, spelled

_OBSERVERS = {
    "min_max": calibration.min_max,
    "moving_average": calibration.moving_average,
    "percentile": calibration.percentile,
    "entropy": calibration.entropy,
    "mean_squared_error": calibration.mean_squared_error,
}


_Choice = TypeVar("_Choice", bound=enum.StrEnum)
_TYPES = {
    "weight_type": weight_formats.WEIGHT_TYPES,
    "activation_type": ("UINT8", "INT8"),
    "scale_type": ("FLOAT32", "FLOAT16", "BFLOAT16"),
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
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        raise _unknown("activations", value, cls)


def _member(name: str, value: object, choices: type[_Choice]) -> _Choice:
    """What a field names, in any case, as a member."""
    if isinstance(value, str) and value.upper() in choices.__members__:
        return choices[value.upper()]
    raise _unknown(name, value, choices)


def _unknown(name: str, value: object, choices: type[enum.StrEnum]) -> TransformError:
    error = TransformError if isinstance(value, str) else TransformTypeError
    return error(f"Scheme: {name} is {shown(value)}; choose one of {', '.join(choices)}")


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How one site is quantized.

    Weights are quantized as the parameters hold them: a cast between the parameter and the product, to bfloat16 for example,
    is applied after the quantization. Each is stored in its own number of bits.

    - ``"INT8"``, ``"INT2"``: integers from -127 or -1 on, symmetric; the scale is ``max|x|`` over 127 or 1.
    - ``"INT4"``: integers from -8 to 7; the scale is the number of the largest magnitude over -8, as in Q4_0 of GGUF. It is
      negative if that number is positive, and numbers of the other sign beyond 7/8 of it saturate.
    - ``"UINT8"``, ``"UINT4"``: integers from 0 to 255 or 15, with a zero point; the scale is the width of the range, which
      holds 0, over 255 or 15.
    - ``"FLOAT8E4M3FN"``, ``"FLOAT8E5M2"``: 8-bit floats; the scale is ``max|x|`` over 448 or 57344.
    - ``"MXFP8E4M3FN"``, ``"MXFP8E5M2"``, ``"MXFP6E2M3FN"``, ``"MXFP6E3M2FN"``, ``"MXFP4"``, ``"MXINT8"``: what `mx_quantize`
      computes, with a power of two for each block.
    - ``"NVFP4"``: what `nvfp4_quantize` computes, with an 8-bit float for each block of 16, and one scale for the tensor.

    The lowest integer of INT8 and INT2, which has no counterpart, is for weights beyond the range of their scale alone, with
    GPTQ or a searched range. One of the 16 of INT4 is too many to leave out: the steps are an eighth shorter with it, though
    multiples of a seventh of the largest weight are exact no more. Integers are multiplied by quantized inputs or, with
    ``"FLOAT"`` activations, by floats. So are MXFP4, MXFP6E2M3FN, MXINT8 and NVFP4, which are integers over a power of two;
    INT2 and all other floats, by floats alone. A convolution takes INT8 and 8-bit floats without blocks, and stays float
    with any other type.

    Attributes:
      weights: ``"PER_CHANNEL"``, a scale for each output channel (and for each row of an embedding table), or
        ``"PER_TENSOR"``. Weights that a `jax.lax.scan` stacks have their own scales in each layer.
      weight_type: one of these types.
      activations: where the scale of the input comes from; by default, from its range at each call, which needs no data.
      activation_type: ``"UINT8"``, with a zero point, or ``"INT8"``, symmetric: 127 steps on each side of 0 (values further
        below a static range saturate at -128).
      observer: how calibration observes the input: the name of a function of `jquant.calibration`, or a list of that name
        and positional arguments, such as ``("percentile", 99.99)``.
      block_size: how many weights of an output channel share a scale, along the dimensions that a product sums over. None:
        all of them, or 32 in MX formats. INT2 needs one, a power of two from 16 on; that of other types of 4 bits is a
        multiple of 4. It need not divide the number of weights: the last block may be shorter.
      scale_type: ``"FLOAT32"``, ``"FLOAT16"`` or ``"BFLOAT16"``: the type of the scales, for integers and 8-bit floats. A
        scale below the numbers of the type becomes the smallest, and weights that need one beyond them are an error.
      k_parts: in how many equal parts a mesh may split the dimensions that a product of integers sums over, with the bits of
        one device: a power of two. The sums of blocks are then added in that many runs, whether there is a mesh or not.
      weight_rounding: ``"NEAREST"``, or ``"GPTQ"``: one row of a matrix after the other, where later rows make up for the
        error of each, as the inputs of calibration require. As a list, with its options: ``("GPTQ", damping,
        activation_order, correction)``, by default 0.01, True and 0: what is added to the diagonal of X^T X, as a share of
        its mean; whether the rows whose inputs are the largest are rounded first; and how much of the error that earlier
        sites have put into the inputs the weights make up for before they are rounded, from 0 to 1 (QEP), which needs
        ``calibrate(..., sequential=True)``. Blocks stay those of the matrix.
      weight_range: ``"min_max"``, or ``"mean_squared_error"``: for each block, that share of its range, from 0.3 to 1 in
        steps of 0.02, which leaves the smallest squared error. Weights beyond it saturate. In MX formats, whose scales are
        powers of two: half of it, all, or twice as much; in NVFP4 also one and a half, so that the largest weight becomes 4
        in place of 6 ("Four Over Six"); in INT2 also each share with a negative scale, by which -2 may be above all. For
        GPTQ and AWQ, which know X^T X, the error of each row counts as much as its inputs, by the diagonal.
      smoothing: factors by which the channels of a product's input are multiplied, while the rows of its weights are divided
        by them. ``"SMOOTHQUANT"``, or ``("SMOOTHQUANT", strength)``, by default 0.5: ``max|w|**(1 - strength) /
        max|x|**strength``. ``"AWQ"``: ``mean|x|**-exponent``, with the exponent from 0 to 0.95 that leaves the smallest
        error of the output, when weights are rounded to nearest. Factors are clipped to 2**-14 and 2**14. Not for static
        inputs.
      rotation: ``"HADAMARD"``: the channels of a product's input are mixed by `hadamard_transform`, so that large ones are
        spread over others, and the rows of its weights likewise.

    Names may have any case. The last four fields are for products. Of them, tables that are looked up have `weight_range`
    alone, and convolutions none. GPTQ and smoothing need `transform.calibrate`. They are applied in the order smoothing,
    rotation, range, rounding.

    Raises:
      TransformError: an unknown string, arguments that the observer does not take, or fields that do not go together.
      TransformTypeError: an argument of the wrong type, or a type of weights or inputs other than those above.

    Example:
      >>> from jquant import transform
      >>> transform.Scheme(activations="STATIC", activation_type="INT8")
      Scheme(activations='STATIC', activation_type='INT8')
      >>> transform.Scheme(weight_type="INT4", block_size=32, scale_type="FLOAT16", activations="FLOAT")
      Scheme(weight_type='INT4', activations='FLOAT', block_size=32, scale_type='FLOAT16')
    """

    weights: ScaleGranularity | str = ScaleGranularity.PER_CHANNEL
    weight_type: str = "INT8"
    activations: Activations | str = Activations.DYNAMIC
    activation_type: str = "UINT8"
    observer: str | Sequence[Any] = "min_max"
    block_size: int | None = None
    scale_type: str = "FLOAT32"
    k_parts: int = 1
    weight_rounding: str | Sequence[Any] = "NEAREST"
    weight_range: str = "min_max"
    smoothing: str | Sequence[Any] | None = None
    rotation: str | None = None

    @as_transform_errors()
    def __post_init__(self) -> None:
        for name, choices in preparation.SPELLINGS.items():
            object.__setattr__(self, name, spelled(getattr(self, name), choices))
        object.__setattr__(self, "weights", _member("weights", self.weights, ScaleGranularity))
        object.__setattr__(self, "activations", _member("activations", self.activations, Activations))
        for name, allowed in _TYPES.items():
            object.__setattr__(self, name, _type_name(name, getattr(self, name), allowed))
        if self.block_size is not None:
            wanted = "a number of weights, or None"
            size = integer("Scheme", "block_size", self.block_size, range(1, 2**31), wanted)
            object.__setattr__(self, "block_size", size)
        parts = integer("Scheme", "k_parts", self.k_parts, range(1, 2**31), "a power of two")
        object.__setattr__(self, "k_parts", parts)
        for name in ("weight_rounding", "smoothing"):
            object.__setattr__(self, name, preparation.plain(getattr(self, name)))
        if self.preparation.rounding is None:  # which checks the fields
            object.__setattr__(self, "weight_rounding", "NEAREST")
        self._require_agreement()
        observer = (self.observer,) if isinstance(self.observer, str) else self.observer
        observer = spelled(observer, tuple(_OBSERVERS))
        name = observer[0] if is_sequence(observer) and len(observer) else None
        if not isinstance(name, str) or name not in _OBSERVERS:
            names = ", ".join(_OBSERVERS)
            message = (
                f"Scheme: observer is {shown(self.observer)}; it must be one of {names}, or a list of that and its arguments"
            )
            raise TransformError(message)
        object.__setattr__(self, "observer", tuple(observer))
        self.make_observer()  # which checks the arguments
        if self.activations != Activations.STATIC and self.observer != ("min_max",):
            message = f"Scheme: observer is {shown(self.observer)}, but nothing is observed: pass activations='STATIC'"
            raise TransformError(message)

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        given = {name: value for name, value in _plain(self).items() if value not in (defaults[name], (defaults[name],))}
        return f"Scheme({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def _require_agreement(self) -> None:
        """Asserts that the fields for weights go together."""
        weight_type, size, parts = self.weight_type, self.block_size, self.k_parts
        by_tensor = self.weights == ScaleGranularity.PER_TENSOR
        is_float, is_static = (self.activations == each for each in (Activations.FLOAT, Activations.STATIC))
        has_own_scales = weight_type in weight_formats.WITH_OWN_SCALES
        has_blocks = has_own_scales or weight_type == "INT2"
        in_one_block = weight_type.endswith("INT4") and size is None
        in_integer_products = (*weight_formats.INTEGER_PRODUCTS, *weight_formats.FLOATS_IN_INTEGER_PRODUCTS)
        only_floats = weight_type not in in_integer_products
        of_type = f"weight_type is {weight_type}"
        of_size, of_parts = f"{of_type} and block_size {size}", f"k_parts is {parts}"
        refused = (
            (by_tensor and size, f"block_size is {size}, but weights are PER_TENSOR, with a single scale"),
            (by_tensor and has_blocks, f"{of_type}, which has blocks: leave out weights"),
            (only_floats and not is_float, f"{of_type}, which is multiplied by floats alone: pass activations='FLOAT'"),
            (has_own_scales and self.scale_type != "FLOAT32", f"{of_type}, whose scales have a type: leave out scale_type"),
            (weight_type == "INT2" and not _is_power_from_16(size), f"{of_size}; it must be a power of two, 16 or more"),
            (weight_type == "NVFP4" and size not in (None, 16), f"{of_size}; its blocks have 16 elements"),
            (weight_type.endswith("INT4") and size and size % 4, f"{of_size}; it must be a multiple of 4"),
            (by_tensor and self.weight_range != "min_max", "weights are PER_TENSOR, and weight_range is searched by block"),
            (self.smoothing and is_static, f"smoothing is {shown(self.smoothing)}, which would change a static range"),
            (parts & (parts - 1), f"{of_parts}; it must be a power of two"),
            (parts > 1 and is_float, f"{of_parts}, but sums of floats depend on how they are split: leave it out"),
            (parts > 1 and in_one_block, f"{of_parts}, but a column is one block: pass block_size"),
        )
        for is_wrong, message in refused:
            if is_wrong:
                raise TransformError(f"Scheme: {message}")

    @property
    def format(self) -> WeightFormat:
        """The format of a matrix or a table."""
        by_column = self.weights == ScaleGranularity.PER_CHANNEL
        is_float = self.activations == Activations.FLOAT
        options = self.weight_type, by_column, self.block_size, self.scale_type, self.k_parts
        return weight_formats.create(*options, is_multiplied_by_floats=is_float)

    @property
    def filter_format(self) -> FilterFormat | None:
        """The format of a filter; None if convolutions do not take the type."""
        by_channel = self.weights == ScaleGranularity.PER_CHANNEL
        if self.block_size is not None:
            return None
        return weight_formats.create_for_filter(self.weight_type, by_channel, self.scale_type)

    @property
    def preparation(self) -> Preparation:
        """What is done to the weights and the input of a product."""
        return Preparation(
            smoothing=preparation.smoothing(self.smoothing),
            is_rotated=preparation.is_rotated(self.rotation),
            searches_range=preparation.searches_range(self.weight_range),
            rounding=preparation.weight_rounding(self.weight_rounding),
        )

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


def _is_power_from_16(size: int | None) -> bool:
    return size is not None and size >= 16 and size & (size - 1) == 0


def _type_name(name: str, value: Any, allowed: Sequence[str]) -> str:
    """The name of a type, which may be passed as a dtype as well."""
    value = spelled(value, allowed)
    if isinstance(value, str) and value in allowed:
        return str(value)
    try:
        dtype = data_type_name(data_type(name, value))
    except DescriptorTypeError:
        dtype = shown(value)
    if dtype not in allowed:
        by_hand = "; quantize_linear takes more types, for a composition by hand" if name == "weight_type" else ""
        raise TransformTypeError(f"Scheme: {name} is {dtype}; it must be one of {', '.join(allowed)}{by_hand}")
    return dtype


def _plain(scheme: Scheme) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, str) else value for name, value in vars(scheme).items()}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which sites of a function are quantized, and how.

    Attributes:
      rules: pairs of a pattern and a `Scheme`, or None to leave the site in float. The first rule whose pattern is the kind
        of the site (``"matmul"``, ``"convolution"`` or ``"embedding"``) or matches its name applies; in names, ``*`` matches
        anything. A site that no pattern matches stays float. Only patterns that begin with ``"activation_matmul"`` match
        products of two activations, such as those of attention, and their schemes are dynamic. A number, as in ``v#2``,
        counts the uses of a weight in the order of the program: if inputs of other sizes reach them in another order, a rule
        for one of them is for the use that is there then.
      smallest: the fewest elements that weights must have to be quantized.

    Raises:
      TransformError: no rules, or a negative `smallest`.
      TransformTypeError: rules that are not pairs of a string and a `Scheme` or None.

    Ready are `static_int8`, `dynamic_int8`, `dynamic_int8_rows`, `weight_only_int8`, `weight_only_int4`, `int4_by_rows`,
    `gptq_int4`, `weight_only_float8`, `weight_only_mxfp4` and `weight_only_nvfp4`, for all sites. In `dynamic_int8_rows`, no
    row of a product changes another, so that a request gets the same bits alone and in a batch, padded or not; convolutions
    have one range for the tensor. In `gptq_int4`, convolutions, which take no weights of 4 bits, have weights of 8; a table
    that is only looked up is rounded to nearest.

    Example:
      >>> from jquant import transform
      >>> recipe = transform.Recipe((("head/*", None), ("*", transform.Scheme())))
      >>> transform.Recipe.from_json(recipe.to_json()) == recipe
      True

      Its pairs are there to be copied:

      >>> of_convolutions, of_others = transform.gptq_int4.rules
      >>> print(*of_convolutions)
      convolution Scheme(activations='FLOAT')
      >>> of_others[1].weight_type, of_others[1].block_size, of_others[1].weight_rounding
      ('INT4', 32, 'GPTQ')
      >>> recipe = transform.Recipe([("head", None), *transform.gptq_int4.rules])
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

    def rule_for(self, name: str, kind: str, *, only_by_kind: bool = False) -> int | None:
        """The index of the first rule that matches a site; with `only_by_kind`, among those that begin with its kind."""
        for argument, value in (("name", name), ("kind", kind)):
            if not isinstance(value, str):
                raise TransformTypeError(f"Recipe.rule_for: {argument} is {shown(value)}; it must be a string")
        with as_transform_errors():
            only_by_kind = boolean("Recipe.rule_for", "only_by_kind", only_by_kind)
        for index, (pattern, _) in enumerate(self.rules):
            may_match = pattern.startswith(kind) or not only_by_kind
            if kind == pattern or (may_match and fnmatch.fnmatchcase(name, pattern)):
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
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            message = f"Recipe.from_json: text is {shown(text)}; it must be what Recipe.to_json returns"
            raise TransformError(message) from error


def _is_rule(rule: object) -> bool:
    return is_sequence(rule) and len(rule) == 2 and isinstance(rule[0], str) and isinstance(rule[1], Scheme | None)


def _everywhere(**fields: Any) -> Recipe:
    return Recipe([("*", Scheme(**fields))])


_INT4: dict[str, Any] = {"weight_type": "INT4", "block_size": 32, "scale_type": "FLOAT16"}

static_int8 = _everywhere(activations="STATIC")
dynamic_int8 = _everywhere()
dynamic_int8_rows = _everywhere(activations="DYNAMIC_ROW")
weight_only_int8 = _everywhere(activations="FLOAT")
weight_only_int4 = _everywhere(**_INT4, activations="FLOAT")
gptq_int4 = Recipe(
    [
        ("convolution", Scheme(activations="FLOAT")),  # which takes no weights of 4 bits
        ("*", Scheme(**_INT4, activations="FLOAT", weight_range="mean_squared_error", weight_rounding="GPTQ")),
    ]
)
int4_by_rows = _everywhere(**_INT4, activations="DYNAMIC_ROW")
weight_only_mxfp4 = _everywhere(weight_type="MXFP4", activations="FLOAT")
weight_only_nvfp4 = _everywhere(weight_type="NVFP4", activations="FLOAT")
weight_only_float8 = _everywhere(weight_type="FLOAT8E4M3FN", activations="FLOAT")
