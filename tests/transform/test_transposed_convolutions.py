"""Transposed convolutions, whose input is dilated, against sums in NumPy that scatter each element of the input."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jquant import transform
from jquant.calibration import Range

CASES, CHUNK, GATE = 400, 4, 2  # how many are drawn in all and in each test, and how many tests are in the gate
SPACE = "HWD"
RECIPES = {
    "dynamic uint8": transform.Scheme(),
    "dynamic int8": transform.Scheme(activation_type="INT8"),
    "dynamic row": transform.Scheme(activations="DYNAMIC_ROW"),  # one range, as convolutions have it
    "static uint8": transform.Scheme(activations="STATIC"),
    "static int8, tensor": transform.Scheme(activations="STATIC", activation_type="INT8", weights="PER_TENSOR"),
    "weights alone": transform.Scheme(activations="FLOAT"),
}
GEOMETRY = "window_strides", "padding", "lhs_dilation", "rhs_dilation"
CONTEXTS = "jit", "eager", "vmap", "scan", "export"


class Case(NamedTuple):
    """A transposed convolution, with an input in NCHW and a filter in OIHW, or those of other ranks.

    Attributes:
      layout: that in which the function has its arrays.
      options: of `jax.lax.conv_general_dilated`.
    """

    x: np.ndarray
    filter: np.ndarray
    layout: tuple[str, str, str]
    options: dict[str, Any]
    recipe: str
    context: str

    def arranged(self, array: np.ndarray, first: str, layout: str) -> np.ndarray:
        """An array whose dimensions begin with two of `first`, in a layout."""
        names = [*first, *SPACE[: array.ndim - 2]]
        return np.ascontiguousarray(array.transpose([names.index(name) for name in layout]))

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, params["filter"], dimension_numbers=self.layout, **self.options)


def draw(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    rank = int(rng.choice([1, 2, 2, 3]))
    groups, channels, filters = (int(rng.integers(1, most)) for most in ((5, 9, 7) if rank < 3 else (3, 4, 4)))
    if rng.random() < 0.5:
        groups = 1
    elif rng.random() < 0.5:
        groups, channels, filters = int(rng.integers(2, 20)), 1, 1
    options: dict[str, Any] = {"feature_group_count": groups, **{name: [] for name in GEOMETRY}}
    sizes, space = [], []
    for _ in range(rank):
        size, dilation = int(rng.integers(1, 6)), int(rng.choice([1, 2, 2, 3, 4, 7]))
        stride, spread = (int(number) for number in rng.choice([1, 1, 1, 1, 1, 1, 1, 2, 3], 2))
        low, high = map(int, rng.integers(-3, 7, 2) if rng.random() < 0.7 else (size - 1, size - 1))
        fewest = -((low + high - (size - 1) * spread) // dilation) + 1  # for which there is a window
        sizes.append(size)
        space.append(max(1, fewest) + int(rng.integers(0, 5)))
        numbers = {"window_strides": stride, "padding": (low, high), "lhs_dilation": dilation, "rhs_dilation": spread}
        for name, number in numbers.items():
            options[name].append(number)
    names = SPACE[:rank]
    layouts, filter_layouts = (f"NC{names}", f"N{names}C"), (f"OI{names}", f"{names}IO", f"O{names}I")
    recipe, context = [*RECIPES][seed % len(RECIPES)], CONTEXTS[seed % len(CONTEXTS)]  # all pairs, in turn
    shapes = (int(rng.integers(1, 4)), groups * channels, *space), (groups * filters, channels, *sizes)
    if recipe == "weights alone":  # whole numbers, of which sums of floats are exact
        dtype, (x, filter) = "float32", (rng.integers(-7, 8, shape).astype(np.float32) for shape in shapes)
        filter[:, 0, *(0 for _ in sizes)] = 127
    else:
        dtype = str(rng.choice(["float32", "float32", "bfloat16", "float16"]))
        x, filter = (rng.normal(rng.normal(), 1, shape).astype(np.float32) for shape in shapes)
    return Case(
        x=x.astype(jnp.dtype(dtype)),
        filter=filter.astype(jnp.dtype(dtype)),
        layout=tuple(str(rng.choice(each)) for each in (layouts, filter_layouts, layouts)),
        options=options,
        recipe=recipe,
        context=context,
    )


def scattered(x: np.ndarray, filter: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """The convolution of whole numbers: each element of the input is added to the results that its products are part of."""
    groups, rank = options["feature_group_count"], x.ndim - 2
    geometry = [*zip(*(options[name] for name in GEOMETRY), strict=True)]
    sizes = zip(x.shape[2:], filter.shape[2:], geometry, strict=True)
    counts = [
        ((size - 1) * dilation + low + high - (length - 1) * spread) // stride + 1
        for size, length, (stride, (low, high), dilation, spread) in sizes
    ]
    total = np.zeros((x.shape[0], filter.shape[0], *counts), np.int64)
    of_group = filter.shape[0] // groups
    for position in np.ndindex(*x.shape[2:]):
        for element in np.ndindex(*filter.shape[2:]):
            where = []
            for at, index, count, (stride, (low, _), dilation, spread) in zip(
                position, element, counts, geometry, strict=True
            ):
                number, rest = divmod(at * dilation + low - index * spread, stride)
                if not rest and 0 <= number < count:
                    where.append(number)
            if len(where) < rank:
                continue
            for group in range(groups):
                filters = slice(group * of_group, (group + 1) * of_group)
                depth = filter.shape[1]
                own = x[:, group * depth : (group + 1) * depth, *position].astype(np.int64)
                total[:, filters, *where] += own @ filter[filters, :, *element].astype(np.int64).T
    return total


def expected(case: Case) -> np.ndarray:
    """The result in float32, rounded to the type of the input, in NCHW."""
    scheme, f32 = RECIPES[case.recipe], np.float32
    x, filter = case.x.astype(f32), case.filter.astype(f32)
    over = tuple(range(1, filter.ndim)) if scheme.weights == "PER_CHANNEL" else None
    scale = abs(filter).max(over, keepdims=over is not None) / f32(127)
    weights = np.rint(filter / scale)
    if scheme.activations == "FLOAT":
        assert np.array_equal(weights * scale, filter)
        return scattered(x, filter, case.options).astype(f32)
    low, high = (f32(x.min()), f32(x.max())) if scheme.activations != "STATIC" else (f32(-1), f32(1.5))
    if scheme.is_symmetric:
        x_scale = max(-low, high) / f32(127) if scheme.activations == "STATIC" else abs(x).max() / f32(127)
        values, zero_point = np.clip(np.rint(x / x_scale), -128, 127), 0
    else:
        low, high = min(low, f32(0)), max(high, f32(0))
        x_scale = (high - low) / f32(255)
        zero_point = np.clip(np.rint(-low / x_scale), 0, 255)
        values = np.clip(np.rint(x / x_scale) + zero_point, 0, 255)
    total = scattered(values - zero_point, weights, case.options)
    by_filter = scale.reshape(-1, *(1,) * (x.ndim - 2)) if over else scale
    return total.astype(np.int32).astype(f32) * (f32(x_scale) * by_filter)


def assert_equal_to_numpy(case: Case) -> int:
    """Compares a case with NumPy, and returns how many elements that has."""
    (_, filter_layout, output_layout), scheme = case.layout, RECIPES[case.recipe]
    x, filter = case.arranged(case.x, "NC", case.layout[0]), case.arranged(case.filter, "OI", filter_layout)
    recipe = transform.Recipe([("*", scheme)], smallest=1)
    calibration = {"filter": Range(np.float32(-1), np.float32(1.5))} if scheme.activations == "STATIC" else None
    apply, params = case.apply, {"filter": filter}
    if case.context == "scan":
        stacked = {"filter": np.stack([filter, filter])}
        apply = lambda params, x: lax.scan(lambda x, w: (x, case.apply({"filter": w}, x)), x, params["filter"])[1]  # noqa: E731
        params = stacked
        calibration = None if calibration is None else jax.tree.map(lambda bound: np.stack([bound] * 2), calibration)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, x, calibration=calibration)
    assert not quantized_params["float"]
    match case.context:
        case "jit" | "scan":
            outputs = jax.jit(quantized_apply)(quantized_params, x)
        case "eager":
            outputs = quantized_apply(quantized_params, x)
        case "vmap":
            outputs = jax.jit(jax.vmap(quantized_apply, (None, 0)))(quantized_params, np.stack([x, x]))
        case "export":
            space = "hwd"[: x.ndim - 2]
            fewest = (f"{name} >= {size}" for name, size in zip(space, case.x.shape[2:], strict=True))
            sizes = export.symbolic_shape(", ".join("b" + space), constraints=[*fewest])
            shape = list(x.shape)
            for name, size in zip("N" + SPACE, sizes, strict=False):
                shape[case.layout[0].index(name)] = size
            function = export.export(jax.jit(quantized_apply))(quantized_params, jax.ShapeDtypeStruct(shape, x.dtype))
            outputs = function.call(quantized_params, x)
    wanted = case.arranged(expected(case), "NC", output_layout).astype(x.dtype).astype(np.float32)
    outputs = np.asarray(outputs).astype(np.float32)
    for output in outputs if case.context in ("vmap", "scan") else [outputs]:
        np.testing.assert_array_equal(output, wanted, f"{case.options}, {case.layout}, {case.context}, {case.recipe}")
    return outputs.size


def chunks() -> list:
    """The first one in everybody's suite, some in the gate, and all in the full run."""
    marks = [(), *[pytest.mark.gate] * GATE, *[pytest.mark.full] * (CASES // CHUNK - GATE - 1)]
    return [pytest.param(chunk, marks=mark) for chunk, mark in enumerate(marks)]


@pytest.mark.parametrize("chunk", chunks())
def test_random_convolutions(chunk, count):
    """One to three dimensions, groups, strides, padding and cropping, layouts, types and contexts."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        count("elements of transposed convolutions", assert_equal_to_numpy(draw(seed)))
