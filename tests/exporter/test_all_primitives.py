"""Every primitive that JAX has is written, or refused with a reason, and with the line of the caller's code."""

import importlib
import inspect
import pkgutil
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import linear_call
from jax.experimental import checkify, layout, sparse
from jax.extend.core import Primitive
from jax.scipy import special

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant.jaxprs import _CALLS
from jquant.onnx import ModelError, export
from jquant.onnx.writing.refused import reason
from jquant.onnx.writing.table import PRIMITIVES

from .running import assert_exported

# Languages of kernels, whose primitives are inside of pallas_call and the like, and modules that need other packages.
_NOT_WALKED = ("pallas", "mosaic", "triton", "thunky", "tpu_custom_call", "test", "tools", "._src.lib", "cudnn", "mpmd")
_EXPANDED = {"call_hi_primitive", *_CALLS}


def _names() -> set[str]:
    """The names of the primitives in JAX's modules."""
    for module in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
        if not any(part in module.name for part in _NOT_WALKED):
            importlib.import_module(module.name)
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "jax"]
    kept = [module for module in modules if not any(part in module.__name__ for part in _NOT_WALKED)]
    return {value.name for module in kept for value in list(vars(module).values()) if isinstance(value, Primitive)}


def test_all_are_written_or_refused():
    names = _names()
    assert len(names) > 250
    unknown = names - PRIMITIVES.keys() - _EXPANDED
    assert not {name for name in unknown if reason(name) is None}
    assert not {name for name in PRIMITIVES if reason(name) is not None}


X = np.arange(1, 10, dtype=np.float32).reshape(3, 3)


def _reference(x):
    state = jax.new_ref(x)
    state[...] = x * 2
    return state[...]


def _reference_in_a_loop(x):
    state = jax.new_ref(x)

    def step(i, carry):
        state[...] = state[...] * 2
        return carry + state[0, 0]

    return lax.fori_loop(0, 3, step, x)


def _ordered(x):
    return lax.optimization_barrier((x, lax.after_all(lax.create_token())))[0]


def _checked(x):
    checkify.check(jnp.all(x > 0), "not positive")
    return x


def _derivative(x):
    def largest(x):
        return lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 1), "VALID").sum()

    return jax.grad(largest)(x)


EXPORTED = jax.export.export(jax.jit(lambda x: x * 2))(X)
REFUSED = {  # with one of the primitives, and the reason
    "decomposition": (lambda x: jnp.linalg.cholesky(x), "cholesky", "no decompositions"),
    "system": (lambda x: jnp.linalg.solve(x, x), "lu", "solves no systems"),
    "eigenvalues": (lambda x: jnp.linalg.eigh(x)[0], "eigh", "no decompositions"),
    "triangles": (lambda x: lax.linalg.triangular_solve(x, x), "triangular_solve", "solves no systems"),
    "gamma": (lambda x: special.gammaln(x), "lgamma", "no node for this function"),
    "zeta": (lambda x: special.zeta(x + 1, x), "zeta", "no node for this function"),
    "next float": (lambda x: jnp.nextafter(x, x + 1), "nextafter", "no node for this function"),
    "search": (lambda x: lax.approx_max_k(x, 2)[0], "approx_top_k", "jax.lax.top_k is written"),
    "reference": (_reference, "new_ref", "return the new values"),
    "reference in a loop": (_reference_in_a_loop, "new_ref", "return the new values"),
    "order": (_ordered, "create_token", "no order of effects"),
    "check": (_checked, "check", "raises no errors"),
    "derivative of a maximum": (_derivative, "select_and_scatter_add", "no derivative"),
    "groups of rows": (lambda x: lax.ragged_dot(x, x[None], jnp.asarray([3])), "ragged_dot_general", "groups of different"),
    "sparse": (lambda x: sparse.BCOO.fromdense(x, nse=9) @ x, "bcoo_fromdense", "pass dense ones"),
    "compiled": (lambda x: EXPORTED.call(x), "call_exported", "export the function itself"),
    "one device": (
        lambda x: jax.pmap(lambda x: lax.pmax(x, "i"), axis_name="i")(x[None])[0],
        "pmax|shard_map",
        "one device",
    ),
    "complex": (lambda x: lax.complex(x, x).real, "complex", "complex64 is not supported"),
}


@pytest.mark.suite
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    """Each line names the function and the line, also of what JAX has jitted before."""
    function, primitive, expected = REFUSED[case]
    for _ in range(2):
        with pytest.raises(ModelError) as error:
            export(lambda x: function(x * 2), X)
        head, *lines = str(error.value).splitlines()
        assert head == "export: the function is not supported:"
        first, last = _lines(function)
        reasons = {}
        for line in lines:
            found = re.fullmatch(r"  (\S+) \((?:in \S+; )?(?P<name>\S+), (?P<file>.+):(?P<line>\d+)\): (?P<reason>.+)", line)
            assert found is not None, line
            assert found["file"] == __file__
            assert first <= int(found["line"]) <= last
            assert found["name"].split(".")[0] == function.__name__
            reasons[found[1]] = found["reason"]
        (chosen,) = (text for name, text in reasons.items() if re.fullmatch(primitive, name))
        assert expected in chosen


def _lines(function) -> tuple[int, int]:
    source, first = inspect.getsourcelines(function)
    return first, first + len(source) - 1


def test_line_of_a_jitted_function():
    """A function that JAX has traced before, from another place, and jquant's own, are called where they are called."""

    def lower(x):
        return jnp.linalg.cholesky(x)

    def both(x):
        return jax.jit(lower)(x) + jnp.linalg.cholesky(x)

    with pytest.raises(ModelError) as error:
        export(both, X)
    names = re.findall(r"  cholesky \((\S+), ", str(error.value))
    assert [name.rpartition(".")[2] for name in names] == ["lower", "both"]


@custom_vmap
def _mapped(x):
    return x * 2


@_mapped.def_vmap
def _(_, __, x):
    return x * 2, True


def _calls(x):
    named = lax.composite(lambda x: x + 1, "own.add")
    transposed = linear_call(lambda r, x: x * r, lambda r, t: t * r, x, x)
    placed = layout.with_layout_constraint(x, layout.Layout((1, 0)))
    return [_mapped(x), named(x), transposed, placed, lax.platform_dependent(x, cpu=lambda x: x - 1, default=jnp.sin)]


def test_calls():
    assert_exported(_calls, X)


def test_bit_counts():
    integers = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32) >> np.arange(64, dtype=np.uint32) % 32

    def counts(x):
        types = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
        return [function(x.astype(each)) for each in types for function in (lax.population_count, lax.clz)]

    assert_exported(counts, np.append(integers, np.uint32([0, 2**32 - 1])))
