"""Networks drawn at random, and the comparison of their quantized functions with NumPy."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compositions import NumPy, numpy_calibration
from support.draw import Draw
from support.formats import is_for_filters
from support.networks import LOOK_UPS, SCHEMES, Float, convolution

from jquant import transform
from jquant.transform.rewriting import compute

WIDTH, ROWS, WORDS = 16, 4, 24
FIRST = 0 if jax.__version_info__ < (0, 11) else 5_000  # the first seed: both versions of JAX together draw twice as many
INTEGER_SCHEMES = [name for name in SCHEMES if not name.startswith("weights")]
CONVOLUTIONS = (  # the shape that a row is reshaped to, the shape of the filter, and the options
    ((4, 4), (4, 4, 3), convolution(1, padding=((1, 1),))),
    ((4, 4), (4, 2, 3), convolution(1, padding=((2, 2),), dilations=(2,), groups=2)),
    ((2, 2, 4), (3, 3, 4, 4), convolution(2, padding=((1, 1), (1, 1)), layout=("NHWC", "HWIO", "NHWC"))),
    ((2, 2, 4), (3, 3, 1, 4), convolution(2, padding=((1, 1), (1, 1)), groups=4, layout=("NHWC", "HWIO", "NHWC"))),
    ((4, 4), (2, 4, 4), convolution(1, input_dilations=(2,), padding=((2, 2),))),
    (
        (2, 2, 4),
        (3, 3, 4, 1),
        convolution(2, input_dilations=(2, 2), padding=((2, 1), (1, 2)), layout=("NHWC", "HWIO", "NHWC")),
    ),
)
CALLS = "jit", "jit in jit", "checkpoint", "custom_jvp", "custom_vjp"


class Block(NamedTuple):
    """A part of a network.

    Attributes:
      name: the name of its parameters.
      kind: the name of its function, in `KINDS`.
      detail: what else that function depends on.
      is_residual: whether its input is added to its output.
    """

    name: str
    kind: str
    detail: Any
    is_residual: bool


class Network(NamedTuple):
    """A function of `ops`, parameters and an input, with its operands and its recipe.

    `look_up` is how it takes its input from a table, which is tied to its last product; None if it has no table.
    """

    blocks: list[Block]
    look_up: str | None
    dtype: str
    is_exact: bool
    recipe: transform.Recipe
    parameters: Any
    x: np.ndarray

    def __call__(self, ops, p, x):
        if self.look_up is not None:
            x = ops.shrink(ops.look_up(p["table"], x, site="table", form=self.look_up))
        x = ops.cast(x, self.dtype)
        for block in self.blocks:
            y = KINDS[block.kind](ops, p[block.name], x, block)
            x = ops.shrink(ops.add(x, y) if block.is_residual else y)
        if self.look_up is not None:
            return ops.product("bd,vd->bv", x, ops.cast_weights(p["table"], self.dtype), site="table#2")
        return x


def dense(ops, w, x, site, letters="bd,dn->bn"):
    return ops.shrink(ops.relu(ops.product(letters, x, ops.cast_weights(w, x.dtype), site=site)))


def one_product(ops, p, x, block):
    return dense(ops, p["w"], x, f"{block.name}/w", block.detail)


def wide(ops, p, x, block):
    return dense(ops, p["down"], dense(ops, p["up"], x, f"{block.name}/up"), f"{block.name}/down")


def sharing(ops, p, x, block):
    """Two products with one input."""
    a, b = (ops.product("bd,dn->bn", x, ops.cast_weights(p[name], x.dtype), site=f"{block.name}/{name}") for name in "ab")
    return ops.shrink(ops.add(ops.relu(a), ops.relu(b)))


def convolved(ops, p, x, block):
    shape, _, options = CONVOLUTIONS[block.detail]
    filter = ops.cast_weights(p["filter"], x.dtype)
    y = ops.convolution(ops.reshape(x, (-1, *shape)), filter, options, site=f"{block.name}/filter")
    return ops.relu(ops.reshape(y, (-1, WIDTH)))


def stacked(ops, p, x, block):
    """Stacked layers, perhaps in reverse, rematerialised, or nested."""
    reverse, checkpoint, nested = block.detail

    def layer(x, w):
        if nested:
            return ops.layers(body, x, w)[0], ()
        return body(x, w)

    def body(x, w):
        return dense(ops, w, x, f"{block.name}/w"), ()

    if checkpoint:
        return ops.layers(lambda x, w: ops.call("checkpoint", layer, x, w), x, p["w"], reverse=reverse)[0]
    return ops.layers(layer, x, p["w"], reverse=reverse)[0]


def branch(ops, p, x, block):
    """Two branches, which read the same input."""
    no, yes = (lambda x, name=name: dense(ops, p[name], x, f"{block.name}/{name}") for name in ("no", "yes"))
    return ops.branch(ops.is_positive(x), yes, no, x)


def repeated(ops, p, x, block):
    count, loop = block.detail
    return ops.repeat(count, lambda x: dense(ops, p["w"], x, f"{block.name}/w"), x, loop=loop)


def paired(ops, p, x, block):
    """Products of two activations, between which there may be one with weights."""
    scores = ops.shrink(ops.activation_product("bd,cd->bc", x, dense(ops, p["w"], x, f"{block.name}/w")))
    return ops.shrink(ops.activation_product("bc,cd->bd", scores, x))


def called(ops, p, x, block):
    return ops.call(block.detail, lambda x, w: dense(ops, w, x, f"{block.name}/w"), x, p["w"])


FUNCTIONS = one_product, wide, sharing, convolved, stacked, branch, repeated, called, paired
KINDS = {function.__name__: function for function in FUNCTIONS}


def draw_network(seed: int) -> Network:
    random = np.random.default_rng(seed)
    dtype = str(random.choice(["float32", "float32", "float32", "bfloat16", "float16"]))
    is_exact = dtype == "float32" and bool(random.integers(2))
    draw = Draw(seed, exact=is_exact)
    blocks, parameters = [], {}
    is_tied = bool(random.integers(3) == 0)
    if is_tied:
        parameters["table"] = draw.weights(WORDS, WIDTH)

    def square(*layers):
        return draw.weights(*layers, WIDTH, WIDTH, layers=len(layers))

    for number in range(random.integers(1, 5)):
        name, kind = f"block{number}", str(random.choice([*KINDS]))
        if kind == "paired" and not is_exact and (dtype == "float16" or any(block.kind == kind for block in blocks)):
            kind = "one_product"  # powers of the input would overflow
        detail = None
        match kind:
            case "one_product":
                detail, weights = str(random.choice(["bd,dn->bn", "bd,nd->bn"])), {"w": square()}
            case "wide":
                weights = {"up": draw.weights(WIDTH, 32), "down": draw.weights(32, WIDTH)}
            case "sharing":
                weights = {"a": square(), "b": square()}
            case "convolved":
                detail = int(random.integers(len(CONVOLUTIONS)))
                weights = {"filter": draw.weights(*CONVOLUTIONS[detail][1])}
            case "stacked":
                detail = tuple(map(bool, random.integers(2, size=3)))
                weights = {"w": square(2, 2) if detail[-1] else square(3)}
            case "branch":
                weights = {"no": square(), "yes": square()}
            case "paired":
                weights = {"w": square()}
            case "repeated":
                detail = int(random.integers(1, 4)), str(random.choice(["fori", "while"]))
                weights = {"w": square()}
            case "called":
                detail, weights = str(random.choice(CALLS)), {"w": square()}
        parameters[name] = weights
        is_residual = bool(random.integers(2)) and dtype == "float32"
        blocks.append(Block(name=name, kind=kind, detail=detail, is_residual=is_residual))
    if dtype == "float16":  # which overflows soon
        parameters = jax.tree.map(lambda w: w * np.float32(0.125), parameters)
    names = [*SCHEMES] if is_exact else INTEGER_SCHEMES
    if any(block.kind == "convolved" for block in blocks):
        names = [name for name in names if is_for_filters(SCHEMES[name])]
    first, others = (SCHEMES[str(random.choice(names))] for _ in range(2))
    if is_exact and random.integers(4) == 0 and len(blocks) > 1:
        first = None  # the first block stays float
    rules = [("*", others)] if random.integers(2) else [("block0/*", first), ("*", others)]
    if any(block.kind == "paired" for block in blocks) and not (is_exact and random.integers(3) == 0):
        activations = str(random.choice(["DYNAMIC", "DYNAMIC_ROW"]))
        rules.insert(0, ("activation_matmul", transform.Scheme(activations=activations)))
    return Network(
        blocks=blocks,
        look_up=str(np.random.default_rng([seed, 1]).choice([*LOOK_UPS])) if is_tied else None,
        dtype=dtype,
        is_exact=is_exact,
        recipe=transform.Recipe(rules, smallest=1),
        parameters=parameters,
        x=draw.indices(ROWS, below=WORDS) if is_tied else draw.input(ROWS, WIDTH),
    )


def as_function(network: Network) -> tuple[Callable, Any]:
    """A network as a function of parameters and an input, and its parameters."""
    return lambda params, x: network(Float(exact=network.is_exact), params, x), network.parameters


@contextlib.contextmanager
def recorded_integers() -> Iterator[list[np.ndarray]]:
    """The integers that sites quantize their inputs to, in the order in which they are computed."""
    integers: list[np.ndarray] = []
    quantize = compute._quantized

    def recording(*arguments):
        quantized = quantize(*arguments)
        jax.debug.callback(lambda values: integers.append(np.array(values)), quantized.values, ordered=True)
        return quantized

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "_quantized", recording)
        yield integers


def assert_equal_to_numpy(
    seed: int, count: Callable[[str, int], None], convert: Callable[[Network], tuple[Callable, Any]] = as_function
) -> None:
    """Compares the network that `seed` draws, quantized, with NumPy: its output, and the integers at all of its sites.

    Args:
      seed: of the network.
      count: the fixture that counts what was compared.
      convert: makes a function of parameters and an input, and its parameters.
    """
    network = draw_network(seed)
    recipe, x = network.recipe, network.x
    calibration = numpy_calibration(network, network.parameters, x, exact=network.is_exact, fraction=0.75)
    apply, parameters = convert(network)
    with recorded_integers() as integers:
        quantized_apply, quantized_params = transform.quantize(apply, parameters, recipe, x, calibration=calibration)
        integers.clear()
        output = np.asarray(jax.jit(quantized_apply)(quantized_params, x))
        jax.effects_barrier()
    oracle = NumPy(recipe, calibration, stored=quantized_params["sites"], exact=network.is_exact)
    expected = network(oracle, network.parameters, x)
    assert len(integers) == len(oracle.integers), f"network {seed}"
    for index, (actual, expected_integers) in enumerate(zip(integers, oracle.integers, strict=True)):
        np.testing.assert_array_equal(actual, expected_integers, f"network {seed}, input {index}", strict=True)
    assert output.dtype == expected.dtype == jnp.dtype(network.dtype)
    np.testing.assert_array_equal(output.astype(np.float32), expected.astype(np.float32), f"network {seed}", strict=True)
    count("random networks", 1)
    count("integers at their sites", sum(each.size for each in integers))
    count("random networks, blocks", len(network.blocks))
