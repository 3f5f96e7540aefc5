"""Small functions for `jquant.transform`, with each primitive and all control flow, written against `ops` of `networks`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from support.draw import Draw
from support.formats import is_for_filters
from support.networks import SCHEMES, convolution


class Network(NamedTuple):
    """A function of `ops`, parameters and one input, with its operands.

    Attributes:
      function: ``function(ops, parameters, x)``.
      parameters: draws the parameters.
      input: the shape of the input, without the batch, which is its first dimension.
      is_exact: whether sums of floats are exact for integers.
      indices_below: for an input of indices, the end of their range; None for a float input.
    """

    function: Callable
    parameters: Callable[[Draw], Any]
    input: tuple[int, ...]
    is_exact: bool
    indices_below: int | None


NETWORKS: dict[str, Network] = {}


def network(
    parameters: Callable[[Draw], Any],
    *,
    input: tuple[int, ...] = (16,),
    is_exact: bool = True,
    indices_below: int | None = None,
):
    """Adds a function to `NETWORKS`, under its name."""

    def register(function):
        NETWORKS[function.__name__] = Network(
            function=function, parameters=parameters, input=input, is_exact=is_exact, indices_below=indices_below
        )
        return function

    return register


def square(*names: str, layers: tuple[int, ...] = ()):
    """Draws square matrices, perhaps stacked over layers."""
    return lambda draw: {name: draw.weights(*layers, 16, 16, layers=len(layers)) for name in names}


@network(square("a", "b"))
def products(ops, p, x):
    x = ops.shrink(ops.relu(ops.product("bd,dn->bn", x, p["a"], site="a")))
    return ops.product("bd,dn->bn", x, p["b"], site="b")


@network(lambda draw: {"w": draw.weights(3, 8, 16)}, input=(3, 8))
def batch_in_the_weights(ops, p, x):
    return ops.product("bed,edn->ebn", x, p["w"], site="w")


@network(lambda draw: {"w": draw.weights(3, 8, 16)}, input=(3, 8))
def batch_in_the_weights_by_dot_general(ops, p, x):
    return ops.dot(x, p["w"], ((2,), (1,)), ((1,), (0,)), site="w")


@network(lambda draw: {"out": draw.weights(4, 8, 16), "mixed": draw.weights(8, 16, 4)}, input=(4, 8))
def several_contracted_dimensions(ops, p, x):
    """Contracted in the order of the input, and in another order."""
    return ops.add(
        ops.product("bhd,hdn->bn", x, p["out"], site="out"), ops.product("bhd,dnh->bn", x, p["mixed"], site="mixed")
    )


@network(lambda draw: {"out": draw.weights(8, 16, 4)}, input=(4, 8))
def contracted_dimensions_in_either_order(ops, p, x):
    return ops.dot(x, p["out"], ((2, 1), (0, 2)), site="out")


@network(lambda draw: {"w": draw.weights(16, 16), "heads": draw.weights(2, 8, 16)})
def weights_on_the_left(ops, p, x):
    x = ops.shrink(ops.product("bd,nd->nb", x, p["w"], site="w", weights_first=True))
    heads = ops.reshape(ops.transpose(x, (1, 0)), (-1, 2, 8))
    return ops.dot(heads, p["heads"], ((2,), (1,)), ((1,), (0,)), site="heads", weights_first=True)


@network(lambda draw: {"table": draw.weights(32, 16)}, input=(3,), indices_below=32)
def tied_embedding(ops, p, x):
    rows = ops.look_up(p["table"], x, site="table")
    return ops.product("btd,vd->btv", ops.shrink(rows), p["table"], site="table#2")


@network(square("q", "k", "v"))
def shared_input(ops, p, x):
    q, k, v = (ops.product("bd,dn->bn", x, p[name], site=name) for name in "qkv")
    return ops.add(ops.relu(q), ops.relu(k)), v


@network(square("a", "b"), is_exact=False)
def cast_to_bfloat16(ops, p, x):
    """The weights are quantized as the float32 that the parameters hold, not as bfloat16."""
    x = ops.product("bd,dn->bn", ops.cast(x, "bfloat16"), ops.cast_weights(p["a"], "bfloat16"), site="a")
    return ops.product("bd,nd->bn", ops.relu(x), ops.cast_weights(p["b"], "bfloat16"), site="b")


@network(square("a", "b", layers=(2,)), is_exact=False)
def cast_before_a_loop_or_a_reshape(ops, p, x):
    """A cast of all layers, and a cast that a reshape follows."""
    x = ops.cast(x, "bfloat16")
    a = ops.cast_weights(p["a"], "bfloat16")
    x, _ = ops.layers(lambda x, w: (ops.relu(ops.product("bd,dn->bn", x, w, site="a")), ()), x, a)
    b = ops.reshape(ops.cast_weights(p["b"], "bfloat16"), (16, 32))
    return ops.product("bd,dn->bn", x, b, site="b")


@network(square("a", "b"), is_exact=False)
def cast_with_wider_sums(ops, p, x):
    x = ops.cast(x, "bfloat16")
    return ops.product("bd,dn->bn", x, ops.cast_weights(p["a"], "bfloat16"), site="a", dtype=np.float32)


@network(
    lambda draw: {"a": draw.weights(16, 16, dtype=np.float16), "b": draw.weights(16, 16, dtype=np.float16)}, is_exact=False
)
def half_precision(ops, p, x):
    x = ops.product("bd,dn->bn", ops.cast(x, "float16"), p["a"], site="a")
    return ops.product("bd,dn->bn", ops.relu(x), p["b"], site="b")


@network(lambda draw: {"a": draw.weights(16, 16), "b": draw.weights(16, 16), "c": draw.weights(8, 16, 2)})
def transposed_and_reshaped_weights(ops, p, x):
    x = ops.shrink(ops.product("bd,dn->bn", x, ops.transpose(p["a"], (1, 0)), site="a"))
    x = ops.shrink(ops.product("bd,dn->bn", x, ops.reshape(p["b"], (16, 16)), site="b"))
    return ops.product("bd,dn->bn", x, ops.reshape(ops.transpose(p["c"], (2, 0, 1)), (16, 16)), site="c")


@network(lambda draw: {"w": draw.weights(16, 16), "y": draw.small(16, 4), "z": draw.small(4, 16)})
def low_rank_update(ops, p, x):
    """W + A @ B: the sum is quantized."""
    w = ops.add(p["w"], ops.weight_product(p["y"], p["z"]))
    return ops.product("bd,dn->bn", x, w, site="w")


def filters(*shape: int):
    return lambda draw: {"filter": draw.weights(*shape)}


@network(filters(8, 4, 3, 3), input=(4, 6, 5))
def convolution_same(ops, p, x):
    return ops.convolution(x, p["filter"], convolution(2, padding=((1, 1), (1, 1))), site="filter")


@network(filters(3, 3, 4, 8), input=(6, 5, 4))
def convolution_channels_last(ops, p, x):
    options = convolution(2, strides=(2, 1), padding=((0, 1), (1, 1)), layout=("NHWC", "HWIO", "NHWC"))
    return ops.convolution(x, p["filter"], options, site="filter")


@network(filters(8, 4, 3), input=(4, 9))
def convolution_of_one_dimension(ops, p, x):
    return ops.convolution(x, p["filter"], convolution(1, dilations=(2,), padding=((2, 0),)), site="filter")


@network(filters(6, 4, 2, 2, 2), input=(4, 4, 3, 3))
def convolution_of_three_dimensions(ops, p, x):
    return ops.convolution(x, p["filter"], convolution(3, strides=(2, 1, 1)), site="filter")


@network(filters(8, 2, 3, 3), input=(4, 6, 5))
def convolution_of_groups(ops, p, x):
    return ops.convolution(x, p["filter"], convolution(2, groups=2, dilations=(1, 2)), site="filter")


@network(filters(3, 3, 1, 8), input=(6, 5, 8))
def depthwise_convolution(ops, p, x):
    options = convolution(2, groups=8, padding=((1, 1), (1, 1)), layout=("NHWC", "HWIO", "NHWC"))
    return ops.convolution(x, p["filter"], options, site="filter")


@network(lambda draw: {"filter": draw.weights(8, 4, 3, 3), "head": draw.weights(8, 16)}, input=(4, 6, 5))
def convolution_and_head(ops, p, x):
    """A filter transposed by the function, pooling, and a product."""
    filter = ops.transpose(p["filter"], (2, 3, 1, 0))
    x = ops.transpose(x, (0, 2, 3, 1))
    x = ops.relu(ops.convolution(x, filter, convolution(2, layout=("NHWC", "HWIO", "NHWC")), site="filter"))
    return ops.product("bd,dn->bn", ops.shrink(ops.largest(x, (1, 2))), p["head"], site="head")


def step(ops, site, **options):
    """One layer: the carry, and an output."""

    def body(x, w):
        x = ops.shrink(ops.relu(ops.product("bd,dn->bn", x, w, site=site, **options)))
        return x, ops.largest(x, 1)

    return body


@network(square("layers", layers=(3,)))
def stacked_layers(ops, p, x):
    return ops.layers(step(ops, "layers"), x, p["layers"])


@network(square("layers", layers=(3,)))
def stacked_layers_in_reverse(ops, p, x):
    return ops.layers(step(ops, "layers"), x, p["layers"], reverse=True)


@network(lambda draw: {"outer": draw.weights(2, 16, 16, layers=1), "inner": draw.weights(2, 3, 16, 16, layers=2)})
def nested_loops(ops, p, x):
    def block(x, layer):
        x, _ = ops.layers(step(ops, "inner"), x, layer["inner"])
        return step(ops, "outer")(x, layer["outer"])

    return ops.layers(block, x, p)


@network(square("layers", layers=(2,)))
def stacked_layers_around_a_loop(ops, p, x):
    """The weights of the outer loop, in an inner loop without weights of its own."""

    def block(x, w):
        inner = step(ops, "layers", depth=1)
        return ops.layers(lambda x, _: inner(x, w), x, np.arange(2), stacked=False)

    return ops.layers(block, x, p["layers"])


@network(square("layers", layers=(2,)))
def stacked_layers_twice(ops, p, x):
    """Two loops over the same weights."""
    x, _ = ops.layers(step(ops, "layers"), x, p["layers"])
    return ops.layers(step(ops, "layers#2"), x, p["layers"])


@network(lambda draw: {"input": draw.weights(16, 16), "state": draw.weights(16, 16)}, input=(4, 16))
def recurrent(ops, p, x):
    """The weights are the same in each pass, which have one scale and one range in common."""

    def body(state, x):
        new = ops.add(
            ops.product("bd,dn->bn", x, p["input"], site="input"), ops.product("bd,dn->bn", state, p["state"], site="state")
        )
        new = ops.shrink(ops.relu(new))
        return new, ops.largest(new, 1)

    time_first = ops.transpose(x, (1, 0, 2))
    return ops.layers(body, ops.relu(time_first[0]), time_first, stacked=False)


@network(square("layers", layers=(3,)))
def rematerialized_layers(ops, p, x):
    return ops.layers(lambda x, w: ops.call("checkpoint", step(ops, "layers"), x, w), x, p["layers"])


def add_call(kind: str):
    """Adds a function that calls another one."""

    def function(ops, p, x):
        inner = step(ops, "a")
        x, largest = ops.call(kind, lambda x, w: inner(x, w), x, p["a"])
        return ops.product("bd,dn->bn", x, p["b"], site="b"), largest

    function.__name__ = kind.replace(" ", "_")
    network(square("a", "b"))(function)


for kind in ("jit", "jit in jit", "checkpoint", "custom_jvp", "custom_vjp"):
    add_call(kind)


@network(square("yes", "no", "after"))
def branch(ops, p, x):
    """Both branches read one input, which has one range."""

    def layer(name):
        return lambda x: ops.shrink(ops.relu(ops.product("bd,dn->bn", x, p[name], site=name)))

    x = ops.branch(ops.is_positive(x), layer("yes"), layer("no"), x)
    return ops.product("bd,dn->bn", x, p["after"], site="after")


@network(square("w"))
def fori_loop(ops, p, x):
    return ops.repeat(3, lambda x: step(ops, "w")(x, p["w"])[0], x)


@network(square("w"))
def while_loop(ops, p, x):
    return ops.repeat(3, lambda x: step(ops, "w")(x, p["w"])[0], x, loop="while")


@network(square("w"))
def weights_in_the_carry(ops, p, x):
    """Each pass hands the weights on unchanged."""
    return ops.repeat(3, lambda carry: (step(ops, "w")(*carry)[0], carry[1]), (x, p["w"]), loop="while")[0]


@network(lambda draw: {"layers": draw.small(3, 16, 16), "shared": draw.weights(16, 16)}, is_exact=False)
def layers_and_shared_weights(ops, p, x):
    """The sum is quantized, in each layer."""

    def body(x, w):
        return ops.relu(ops.product("bd,dn->bn", x, ops.add(w, p["shared"]), site="layers")), ()

    return ops.layers(body, x, p["layers"])[0]


@network(square("w"))
def mapped_inside(ops, p, x):
    return ops.rows(x, p["w"], site="w")


@network(lambda draw: {"w": draw.weights(16, 16)}, input=(2, 3, 16))
def several_free_dimensions(ops, p, x):
    return ops.product("bstd,dn->tbns", x, p["w"], site="w")


@network(lambda draw: {"q": draw.weights(16, 2, 8), "o": draw.weights(2, 8, 16)}, input=(3, 16))
def heads(ops, p, x):
    q = ops.shrink(ops.product("btd,dhk->bhtk", x, p["q"], site="q"))
    return ops.add(ops.product("bhtk,hkd->btd", q, p["o"], site="o"), x)


@network(square("a", "b"))
def one_weight_twice(ops, p, x):
    """The weights are stored once for both products, and once more for the product with their transpose."""
    x = ops.shrink(ops.product("bd,dn->bn", x, p["a"], site="a"))
    x = ops.shrink(ops.product("bd,dn->bn", x, p["a"], site="a#2"))
    return ops.product("bd,nd->bn", ops.concatenate([x, x], 0), p["a"], site="a#3")


@network(filters(4, 4, 8, 6), input=(3, 5, 8))
def transposed_convolution(ops, p, x):
    """As `jax.lax.conv_transpose` with a stride of 2 calls it."""
    options = convolution(2, input_dilations=(2, 2), padding=((2, 2), (2, 2)), layout=("NHWC", "HWIO", "NHWC"))
    return ops.convolution(x, p["filter"], options, site="filter")


@network(filters(6, 2, 3, 2), input=(4, 4, 5))
def transposed_convolution_of_groups(ops, p, x):
    """One dimension is cropped, and one has a stride as well."""
    options = convolution(2, input_dilations=(3, 2), padding=((-1, 2), (1, 0)), strides=(1, 3), groups=2)
    return ops.convolution(x, p["filter"], options, site="filter")


def applicable_schemes(network: Network) -> list[str]:
    """The names of the schemes to test: those that leave products of floats only where sums of floats are exact.

    A function of a filter alone has no site in formats that convolutions do not take.
    """
    has_filters = "convolution" in network.function.__name__
    only_filters = list(network.parameters(Draw(0))) == ["filter"]

    def leaves_floats(name: str) -> bool:
        return name.startswith("weights") or (has_filters and not is_for_filters(SCHEMES[name]))

    names = [name for name in SCHEMES if is_for_filters(SCHEMES[name]) or not only_filters]
    return [name for name in names if not leaves_floats(name) or (network.is_exact and name.startswith("weights"))]


def draw_operands(network: Network, scheme: str, count: int, seed: int = 0):
    """Parameters and an input of `count` rows. The parameters do not depend on `count`."""
    exact = scheme.startswith("weights")
    parameters = network.parameters(Draw(seed, exact=exact))
    draw = Draw(seed + count, exact=exact)
    if network.indices_below is not None:
        return parameters, draw.indices(count, *network.input, below=network.indices_below)
    return parameters, draw.input(count, *network.input)
