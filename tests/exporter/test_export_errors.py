"""What export refuses: one error each, with all reasons at once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from jquant.onnx import ModelError, export

X = np.ones((4, 3), np.float32)
TYPE = jax.ShapeDtypeStruct(X.shape, X.dtype)
ARGUMENTS = {
    "function": ((3, X), {}, "function is 3; it must be a function of arrays"),
    "form": ((jnp.abs, X), {"form": "fast"}, "form is 'fast'; it must be 'exact' or 'qdq'"),
    "unroll": ((jnp.abs, X), {"unroll": 1}, "unroll is 1; it must be True or False"),
    "old set": ((jnp.abs, X), {"opset": 12}, "opset is 12; it must be an integer from 13 to "),
    "new set": ((jnp.abs, X), {"opset": 999}, "opset is 999; it must be an integer from 13 to "),
    "text as a set": ((jnp.abs, X), {"opset": "13"}, "opset is '13'; it must be an integer"),
    "truth as a set": ((jnp.abs, X), {"opset": True}, "opset is True; it must be an integer"),
    "text as domains": ((jnp.abs, X), {"domains": "com.microsoft"}, "domains is 'com.microsoft'; it may have none but"),
    "unknown domain": ((jnp.abs, X), {"domains": ("com.me",)}, "domains is ('com.me',); it may have none but"),
    "text as names": ((jnp.abs, X), {"input_names": "x"}, "input_names is 'x'; it must be a sequence of names"),
    "no name": ((jnp.abs, X), {"output_names": [""]}, "output_names is ['']; it must be a sequence of names"),
    "number as name": ((jnp.abs, X), {"output_names": [1]}, "output_names is [1]; it must be a sequence of names"),
    "few names": ((lambda x, y: x, X, X), {"input_names": ["a"]}, "input_names has 1 names, but there are 2: x, y"),
    "many names": ((lambda x: {"l": x}, X), {"output_names": ["a", "b"]}, "output_names has 2 names, but there are 1: l"),
    "repeated": ((lambda x, y: x, X, X), {"input_names": ["a", "a"]}, "the name 'a' is given to several inputs or outputs"),
    "both": ((lambda x: x, X), {"input_names": ["a"], "output_names": ["a"]}, "the name 'a' is given to several"),
    "taken": ((lambda x: x, X), {"output_names": ["x"]}, "the name 'x' is given to several inputs or outputs"),
    "text": ((lambda x, mode: x, X, "fast"), {}, "mode is 'fast'; it must be an array, a number or a jax.ShapeDtypeStruct"),
    "complex": ((lambda x: x.real, X.astype(np.complex64)), {}, "x: complex64 is not supported"),
    "key": ((lambda k: jax.random.normal(k, (3,)), jax.random.key(0)), {}, "k is a random key, which a model cannot take"),
    "nothing": ((lambda x: None, X), {}, "the function returns no array"),
    "text as a size": (
        (lambda images: images, jax.ShapeDtypeStruct(("n", 3), np.float32)),
        {},
        """images has the size 'n'; for an open size, pass one of jax.export.symbolic_shape("n")""",
    ),
    "sizes": (
        (lambda params, x: x, {"w": X}, jax.ShapeDtypeStruct(("batch", 3, "height", "the width", "batch"), np.float32)),
        {},
        "x has the size 'batch' and 'height' and 'the width' and 'batch'; "
        """for an open size, pass one of jax.export.symbolic_shape("batch, height")""",
    ),
    "negative size": (
        (lambda params, x: x @ params["w"], {"w": X}, jax.ShapeDtypeStruct((-1, 4), np.float32)),
        {},
        """x has the size -1; for an open size, pass one of jax.export.symbolic_shape("batch")""",
    ),
    "broken size": (
        (lambda x: x, jax.ShapeDtypeStruct((2.5,), np.float32)),
        {},
        """x has the size 2.5; for an open size, pass one of jax.export.symbolic_shape("batch")""",
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(case):
    positional, named, message = ARGUMENTS[case]
    with pytest.raises(ModelError, match=re.escape(message)) as error:
        export(*positional, **named)
    assert str(error.value).startswith("export: ")


def test_all_arguments_at_once():
    with pytest.raises(ModelError) as error:
        export(lambda *x: x[0], [X, object(), "a"], {"k": X.astype(np.complex64)})
    assert [line.split(" is ")[0].split(": ")[0].strip() for line in str(error.value).splitlines()[1:]] == [
        "x_0.1",
        "x_0.2",
        "x_1.k",
    ]


def test_traced():
    with pytest.raises(ModelError, match=r"x is being traced; call export outside of jax.jit"):
        jax.jit(lambda x: export(lambda x: x * 2, x))(X)
    with pytest.raises(ModelError, match="the function holds an array that is being traced"):
        jax.jit(lambda x: export(lambda y: y * x, X))(X)


def with_effects(x):
    jax.debug.print("{}", x)
    io_callback(print, None, x, ordered=True)
    return x * 2


def key_inside(x):
    return x + jax.random.normal(jax.random.key(x[0, 0].astype(jnp.int32)), x.shape)


def old_key(x):
    return x + jax.random.uniform(jax.random.PRNGKey(x[0, 0].astype(jnp.int32)), x.shape)


def key_in_a_loop(x):
    return lax.fori_loop(0, x[0, 0].astype(jnp.int32), lambda _, c: jax.random.split(c)[0], jax.random.key(0)), x


def sharded(x):
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(lambda x: lax.psum(x, "a"), mesh=mesh, in_specs=jax.P("a"), out_specs=jax.P())(x)


def kernel(x):
    def copy(source, target):
        target[...] = source[...]

    return pl.pallas_call(copy, out_shape=TYPE)(x)


FUNCTIONS = {
    "effects": (with_effects, {"debug_print": "Python", "io_callback": "Python"}),
    "callback": (lambda x: jax.pure_callback(np.abs, TYPE, x), {"pure_callback": "Python"}),
    "random": (key_inside, {"random_seed": "random numbers", "random_bits": "random numbers"}),
    "old key": (old_key, {"random_wrap": "random numbers"}),
    "key in a loop": (key_in_a_loop, {"while": "random numbers"}),
    "key as output": (lambda x: (x, jax.random.key(0)), {"the output output_1": "random numbers"}),
    "complex": (
        lambda x: jnp.abs(lax.complex(x, x) * 2),
        {"mul": "complex64 is not supported", "abs": "complex64 is not supported"},
    ),
    "transform": (lambda x: jnp.fft.fft(x).real, {"fft": "complex64 is not supported"}),
    "shard_map": (sharded, {"shard_map": "one device"}),
    "kernel": (kernel, {"pallas_call": "a kernel of one's own"}),
    "foreign": (lambda x: jax.ffi.ffi_call("f", TYPE)(x), {"ffi_call": "a kernel of one's own"}),
    "decomposition": (lambda x: jnp.linalg.qr(x)[0], {"qr": "is not supported"}),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions(case):
    function, expected = FUNCTIONS[case]
    with pytest.raises(ModelError) as error:
        export(function, X)
    head, *lines = str(error.value).splitlines()
    assert head == "export: the function is not supported:"
    found = {_without_source(name): reason for name, reason in (line.strip().split(": ", 1) for line in lines)}
    for primitive, reason in expected.items():
        assert reason in found[primitive]


def _without_source(name: str) -> str:
    """A primitive and its place, without the function and the line."""
    return re.sub(r"( \(|; )[^(;]+, [^;]+:\d+\)$", lambda found: ")" * (found[1] == "; "), name)


def test_everything_at_once():
    """Each primitive with its place once, also in the bodies and the steps of loops."""

    def step(carry, x):
        with jax.named_scope("step"):
            return jnp.linalg.cholesky(carry) + jnp.fft.fft(x).real, x

    def function(x):
        with jax.named_scope("outer"):
            x = lax.scan(step, jnp.eye(3) + x[:1], jnp.stack([x[:3]] * 5))[0]
            x = lax.while_loop(lambda c: c.sum() < 3, lambda c: jax.pure_callback(np.abs, jax.typeof(c), c), x)
            x = lax.cond(x.sum() > 0, lambda: x, lambda: jnp.linalg.cholesky(x))
        jax.debug.print("x")
        return x

    for unroll in (True, False):
        with pytest.raises(ModelError) as error:
            export(function, X, unroll=unroll)
        names = [_without_source(line.split(": ")[0].strip()) for line in str(error.value).splitlines()[1:]]
        assert len(set(names)) == len(names)
        wanted = {
            "cholesky (in outer/step)",
            "fft (in outer/step)",
            "pure_callback (in outer)",
            "cholesky (in outer)",
            "debug_print",
        }
        assert wanted <= set(names)


def test_float64():
    with jax.enable_x64(True):
        with pytest.raises(ModelError, match="x: float64 is not supported; convert it to float32"):
            export(lambda x: x * 2, X.astype(np.float64))
        with pytest.raises(ModelError, match=r"convert_element_type \(.*:\d+\): float64 is not supported"):
            export(lambda x: (x.astype(jnp.float64) * 2).astype(jnp.float32), X)


def test_explicit_mesh():
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(X, jax.NamedSharding(mesh, jax.P("a")))
    with pytest.raises(ModelError, match=r"x: it is sharded over the axes of an explicit mesh"):
        export(lambda x: x * 2, x)


def test_own_errors_of_a_function():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        export(lambda x: x if x[0, 0] > 0 else -x, X)
