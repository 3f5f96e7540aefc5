"""Every operator exported with symbolic sizes that are differences, whose products JAX cannot prove not to be negative.

A symbolic number of rows, mapped over another one by `jax.vmap`; where there are images, of symbolic height and width. So
there are two to four such sizes, which programs join. The exported programs run at two sizes each.
"""

import functools
import itertools
import traceback

import jax
import numpy as np
from jax import export
from support.comparison import assert_equal
from support.sampling import one_in

from jquant import cases
from jquant.cases import samples

PLATFORMS = ("cpu", "cuda", "tpu")
ALL_CASES = cases.CASES | cases.VARIANTS
SIZES = {"m": 3, "b": 4, "h": 9, "w": 10}  # of the mapped dimension, the rows and the images
OTHER_SIZES = {"m": 2, "b": 3, "h": 12, "w": 8}
NAMES = "m - 1", "b - 1", "h - 2", "w - 3"
CONSTRAINTS = "m >= 2", "b >= 2", "h >= 8", "w >= 8"


def spatial(name: str, x) -> tuple[int, ...]:
    """The dimensions of an argument of this case that are the height and the width of images."""
    if len(x.shape) != 4:
        return ()
    return (1, 2) if "channels last" in name else (2, 3)


def with_sizes(name: str, case: cases.Case, values: tuple, sizes, resize) -> tuple:
    """Arguments of which those with rows become ``resize(x, shape)``, of `sizes`: mapped, rows, height and width."""

    def resized(x):
        shape = [*sizes[:2], *x.shape[1:]]
        for dimension, size in zip(spatial(name, x), sizes[2:], strict=False):
            shape[dimension + 1] = size
        return resize(x, tuple(shape))

    return tuple(jax.tree.map(resized, value) if index in case.rows else value for index, value in enumerate(values))


def array(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`x` cut or repeated to this shape, which has a mapped dimension more, over which rows are moved."""
    for axis, size in enumerate(shape[1:]):
        x = np.take(x, np.arange(size) % x.shape[axis], axis)
    return np.stack([np.roll(x, number, 0) for number in range(shape[0])])


def shape_of(x: np.ndarray, shape: tuple) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, x.dtype)


@one_in(39, "name", ALL_CASES, others="full")
def test_every_operator(name, count):
    case = ALL_CASES[name]
    arguments = case.arguments()
    axes = tuple(0 if index in case.rows else None for index in range(len(arguments)))
    names = NAMES if any(map(functools.partial(spatial, name), jax.tree.leaves(arguments[0]))) else NAMES[:2]
    symbols = export.symbolic_shape(", ".join(names), constraints=CONSTRAINTS[: len(names)])
    shapes = with_sizes(name, case, arguments, symbols, shape_of)
    program = export.export(jax.jit(jax.vmap(case.function, axes)), platforms=PLATFORMS)(*shapes)
    for values in (SIZES, OTHER_SIZES):
        sizes = tuple(eval(size, {}, values) for size in names)
        inputs = with_sizes(name, case, arguments, sizes, array)
        one_by_one = [
            case.formula(*(value if axis is None else jax.tree.map(lambda x, number=number: x[number], value)
                           for value, axis in zip(inputs, axes, strict=True)))
            for number in range(sizes[0])
        ]  # fmt: skip
        expected = jax.tree.map(lambda *results: np.stack(results), *one_by_one)
        assert_equal(program.call(*inputs), expected, f"{name} of sizes {sizes}")
        count("exported programs of differences as sizes, calls", 1)


# The sizes of images: symbolic, and two examples of each.
IMAGES = {
    "h, w": ((9, 11), (6, 7)),
    "h, h": ((10, 10), (7, 7)),
    "2*h, w + 3": ((12, 10), (14, 9)),
    "h - 1, w": ((9, 8), (6, 6)),
    "6, w": ((6, 9), (6, 7)),
}
STRIDES = (1, 1), (2, 1), (2, 3)
PADDINGS = "VALID", "SAME", ((1, 0), (0, 2))
DILATIONS = (1, 1), (2, 1)
KEYWORDS = {name: getattr(case.function, "keywords", {}) for name, case in ALL_CASES.items()}
WITH_WINDOWS = [name for name, keywords in KEYWORDS.items() if "strides" in keywords]
WINDOWS = [
    (name, windows, list(IMAGES)[number % len(IMAGES)])
    for number, (name, windows) in enumerate(
        itertools.product(WITH_WINDOWS, itertools.product(STRIDES, PADDINGS, DILATIONS))
    )
]


def same_padding(size: int, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """The padding of "SAME" along one dimension: as many windows as strides, most of it after the last element."""
    padding = max((-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
    return padding // 2, padding - padding // 2


@one_in(179, ("name", "windows", "image"), WINDOWS, others="full")
def test_windows(name, windows, image, count):
    """Images of any size that the windows fit into."""
    case, (strides, padding, dilations) = ALL_CASES[name], windows
    x, *others = case.arguments(rows=2)
    window = KEYWORDS[name].get("window_sizes") or next(other.shape[2:] for other in others if other.ndim == 4)
    options = {"strides": strides, "dilations": dilations}
    symbols = export.symbolic_shape(image, constraints=[f"{symbol} >= 6" for symbol in "hw" if symbol in image])
    shape = jax.ShapeDtypeStruct((*x.shape[:2], *symbols), x.dtype)
    function = functools.partial(case.function, padding=padding, **options)
    try:
        program = export.export(jax.jit(lambda x: function(x, *others)), platforms=PLATFORMS)(shape)
    except AssertionError as error:  # jax 0.10.2 cannot compare some sizes with 0
        if jax.__version__ != "0.10.2" or "shape_poly_decision" not in str(traceback.extract_tb(error.__traceback__)[-1]):
            raise
        count("exports of windows in which jax fails an assertion of its own", 1)
        return
    for sizes in IMAGES[image]:
        x = samples.integers(np.random.default_rng(len(name)), x.dtype, *x.shape[:2], *sizes)
        pairs = padding
        if isinstance(padding, str):
            dimensions = zip(sizes, window, strides, dilations, strict=True)
            pairs = [same_padding(*each) if padding == "SAME" else (0, 0) for each in dimensions]
        assert_equal(program.call(x), case.formula(x, *others, **options, padding=pairs), f"{image} = {sizes}")
        count("exported programs of windows, calls", 1)
