"""Networks drawn at random, and the comparison of `jquant.transform.quantize` of them with NumPy."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import SCHEMES, Draw, Float, NumPy, convolution, ranges_of

from jquant import transform
from jquant.transform import compute

WIDTH, ROWS, WORDS = 16, 4, 24
FIRST = 0 if jax.__version_info__ < (0, 11) else 5_000  # each version of JAX draws others: together they see twice as many
INTEGERS = [name for name in SCHEMES if not name.startswith("weights")]
CONVOLUTIONS = (  # of what the row becomes: the shape, that of the filter, and the rest
    ((4, 4), (4, 4, 3), convolution(1, padding=((1, 1),))),
    ((4, 4), (4, 2, 3), convolution(1, padding=((2, 2),), dilations=(2,), groups=2)),
    ((2, 2, 4), (3, 3, 4, 4), convolution(2, padding=((1, 1), (1, 1)), layout=("NHWC", "HWIO", "NHWC"))),
    ((2, 2, 4), (3, 3, 1, 4), convolution(2, padding=((1, 1), (1, 1)), groups=4, layout=("NHWC", "HWIO", "NHWC"))),
)
CALLS = "jit", "jit in jit", "checkpoint", "custom_jvp", "custom_vjp"


class Block(NamedTuple):
    """A part of a network: what it is, what it holds, and whether its input is added to its output."""

    name: str
    kind: str
    detail: Any
    is_residual: bool


class Network(NamedTuple):
    """A function of `ops`, with what it is given."""

    blocks: list[Block]
    is_tied: bool
    dtype: str
    is_exact: bool
    recipe: transform.Recipe
    parameters: Any
    x: np.ndarray

    def __call__(self, ops, p, x):
        if self.is_tied:
            x = ops.tame(ops.look_up(p["table"], x, at="table"))
        x = ops.cast(x, self.dtype)
        for block in self.blocks:
            y = KINDS[block.kind](ops, p[block.name], x, block)
            x = ops.tame(ops.add(x, y) if block.is_residual else y)
        if self.is_tied:
            return ops.product("bd,vd->bv", x, ops.weights_as(p["table"], self.dtype), at="table#2")
        return x


def dense(ops, w, x, at, letters="bd,dn->bn"):
    return ops.tame(ops.relu(ops.product(letters, x, ops.weights_as(w, x.dtype), at=at)))


def one_product(ops, p, x, block):
    return dense(ops, p["w"], x, f"{block.name}/w", block.detail)


def wide(ops, p, x, block):
    return dense(ops, p["down"], dense(ops, p["up"], x, f"{block.name}/up"), f"{block.name}/down")


def sharing(ops, p, x, block):
    """Two products with one input."""
    a, b = (ops.product("bd,dn->bn", x, ops.weights_as(p[name], x.dtype), at=f"{block.name}/{name}") for name in "ab")
    return ops.tame(ops.add(ops.relu(a), ops.relu(b)))


def convolved(ops, p, x, block):
    shape, _, static = CONVOLUTIONS[block.detail]
    filter = ops.weights_as(p["filter"], x.dtype)
    y = ops.convolution(ops.reshape(x, (-1, *shape)), filter, static, at=f"{block.name}/filter")
    return ops.relu(ops.reshape(y, (-1, WIDTH)))


def stacked(ops, p, x, block):
    """Layers, perhaps in reverse, perhaps computed again for a derivative, perhaps of layers."""
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
    """Both read the same input."""
    no, yes = (lambda x, name=name: dense(ops, p[name], x, f"{block.name}/{name}") for name in ("no", "yes"))
    return ops.branch(ops.is_positive(x), yes, no, x)


def repeated(ops, p, x, block):
    count, kind = block.detail
    return ops.repeat(count, lambda x: dense(ops, p["w"], x, f"{block.name}/w"), x, kind=kind)


def called(ops, p, x, block):
    return ops.call(block.detail, lambda x, w: dense(ops, w, x, f"{block.name}/w"), x, p["w"])


KINDS = {each.__name__: each for each in (one_product, wide, sharing, convolved, stacked, branch, repeated, called)}


def network(seed: int) -> Network:
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
        detail = None
        match kind:
            case "one_product":
                detail, held = str(random.choice(["bd,dn->bn", "bd,nd->bn"])), {"w": square()}
            case "wide":
                held = {"up": draw.weights(WIDTH, 32), "down": draw.weights(32, WIDTH)}
            case "sharing":
                held = {"a": square(), "b": square()}
            case "convolved":
                detail = int(random.integers(len(CONVOLUTIONS)))
                held = {"filter": draw.weights(*CONVOLUTIONS[detail][1])}
            case "stacked":
                detail = tuple(map(bool, random.integers(2, size=3)))
                held = {"w": square(2, 2) if detail[-1] else square(3)}
            case "branch":
                held = {"no": square(), "yes": square()}
            case "repeated":
                detail, held = (int(random.integers(1, 4)), str(random.choice(["fori", "while"]))), {"w": square()}
            case "called":
                detail, held = str(random.choice(CALLS)), {"w": square()}
        parameters[name] = held
        blocks.append(Block(name, kind, detail, bool(random.integers(2)) and dtype == "float32"))
    if dtype == "float16":  # whose largest is near
        parameters = jax.tree.map(lambda w: w * np.float32(0.125), parameters)
    names = [*SCHEMES] if is_exact else INTEGERS
    one, other = (SCHEMES[str(random.choice(names))] for _ in range(2))
    if is_exact and random.integers(4) == 0 and len(blocks) > 1:
        one = None  # the first block stays float
    rules = [("*", other)] if random.integers(2) else [("block0/*", one), ("*", other)]
    x = draw.indices(ROWS, below=WORDS) if is_tied else draw.input(ROWS, WIDTH)
    return Network(blocks, is_tied, dtype, is_exact, transform.Recipe(rules, smallest=1), parameters, x)


def plain(given: Network) -> tuple[Callable, Any]:
    """A network as a function, and its parameters."""
    return lambda params, x: given(Float(exact=given.is_exact), params, x), given.parameters


@contextlib.contextmanager
def recorded() -> Iterator[list[np.ndarray]]:
    """The integers that sites quantize their inputs to, in the order in which they are computed."""
    integers: list[np.ndarray] = []
    quantize = compute.quantize_input

    def recording(*arguments):
        quantized = quantize(*arguments)
        jax.debug.callback(lambda values: integers.append(np.array(values)), quantized.values, ordered=True)
        return quantized

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "quantize_input", recording)
        yield integers


def assert_equal_to_numpy(seed: int, count: Callable[[str, int], None], house: Callable = plain) -> None:
    """Of the network that `seed` draws: its result, and the integers at all of its sites.

    Args:
      count: is told what was compared.
      house: makes a function of parameters and inputs, and its parameters.
    """
    given = network(seed)
    ranges = ranges_of(given, given.parameters, given.x, exact=given.is_exact, part=0.75)
    oracle = NumPy(given.recipe, ranges, exact=given.is_exact)
    expected = given(oracle, given.parameters, given.x)
    apply, parameters = house(given)
    with recorded() as integers:
        quantized_apply, quantized_params = transform.quantize(apply, parameters, given.recipe, given.x, calibration=ranges)
        integers.clear()
        output = np.asarray(jax.jit(quantized_apply)(quantized_params, given.x))
        jax.effects_barrier()
    assert len(integers) == len(oracle.integers), f"network {seed}"
    for place, (actual, wanted) in enumerate(zip(integers, oracle.integers, strict=True)):
        np.testing.assert_array_equal(actual, wanted, f"network {seed}, input {place}", strict=True)
    assert output.dtype == expected.dtype == jnp.dtype(given.dtype)
    wider = (output.astype(np.float32), expected.astype(np.float32))
    np.testing.assert_array_equal(*wider, f"network {seed}", strict=True)
    count("random networks", 1)
    count("integers at their sites", sum(each.size for each in integers))
    count("random networks, blocks", len(given.blocks))
