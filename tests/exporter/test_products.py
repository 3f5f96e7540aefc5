"""Products of matrices in all dimensions, exported."""

import jax.numpy as jnp
import pytest
from jax import lax
from support.saturation import need_exact_products

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from .running import INTEGERS, assert_exported, in_type, numbers, sample

SUMS = [
    ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5), ["Transpose", "Transpose", "MatMul"]),
    ("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5), None),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5), ["Transpose", "MatMul"]),
    ("bsd,dhk->bshk", (2, 3, 4), (4, 5, 6), ["Reshape", "MatMul", "Reshape"]),
    ("bshk,hkd->bsd", (2, 3, 5, 6), (5, 6, 4), ["Reshape", "Reshape", "MatMul"]),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5), ["MatMul"]),
    ("abc,cd->abd", (2, 3, 4), (4, 5), ["MatMul"]),
    ("ij,kj->ik", (3, 4), (5, 4), ["Transpose", "MatMul"]),
    ("ij,jk->ki", (3, 4), (4, 5), None),
    ("bi,bi->b", (3, 4), (3, 4), None),
    ("bi,bij->bj", (3, 4), (3, 4, 5), None),
    ("ijk,ilk->jl", (2, 3, 4), (2, 5, 4), None),
    ("i,j->ij", (3,), (4,), None),
    ("ab,cd->abcd", (2, 3), (4, 5), None),
    ("bgqhd,bkgd->bgqhk", (2, 2, 3, 4, 5), (2, 6, 2, 5), None),
    ("ij,j->i", (3, 4), (4,), ["MatMul"]),
    ("i,ij->j", (3,), (3, 4), ["MatMul"]),
    ("i,i->", (3,), (3,), ["MatMul"]),
]


@pytest.mark.parametrize(("sum", "a", "b", "nodes"), SUMS)
def test_sums_of_products(sum, a, b, nodes):
    found = assert_exported(
        lambda a, b: jnp.einsum(sum, a, b), numbers("float32", *a), numbers("float32", *b), tolerance=3e-6
    )
    assert nodes is None or found == nodes


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6)])
def test_weights_are_the_second_operand_of_one_node(shape):
    weights = numbers("float32", 6, 7)
    nodes = assert_exported(lambda x: x @ weights, numbers("float32", *shape), tolerance=3e-6)
    assert nodes == ["MatMul"]


@pytest.mark.parametrize("dtype", sample(INTEGERS, "int8", "uint16"))
@pytest.mark.parametrize("preferred", [None, "int32", "uint32"])
def test_products_of_integers(dtype, preferred):
    """Sums wrap; those of bytes are MatMulInteger."""
    a, b = numbers(dtype, 3, 6), numbers(dtype, 6, 7, seed=1)

    def function(a, b):
        def product(a, b):
            return lax.dot_general(a, b, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type=preferred)

        return product(a, b), product(a[0], b), product(a, b[:, 0]), product(a[0], b[:, 0])

    nodes = assert_exported(function, a, b)
    assert ("MatMulInteger" in nodes) == ("int8" in dtype)
    if "int8" in dtype and preferred == "int32":
        assert nodes.count("MatMulInteger") == 4
        assert "Cast" not in nodes


def test_products_of_different_bytes():
    need_exact_products("uint8", "int8")

    def product(a, b):
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)

    assert_exported(product, numbers("int8", 3, 6), numbers("uint8", 6, 7), reference=True)
    assert_exported(product, numbers("uint8", 3, 6), numbers("int8", 6, 7), reference=True)


def test_products_of_bool():
    assert_exported(lax.dot, numbers("bool", 3, 6), numbers("bool", 6, 7, seed=1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_narrow_floats(dtype):
    a, b = numbers("float32", 3, 6), numbers("float32", 6, 7)
    assert_exported(in_type(dtype)(jnp.matmul), a, b, tolerance=2e-2)
    wide = in_type(dtype)(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    assert_exported(wide, a, b, tolerance=2e-6)


def test_products_of_nothing_are_zero():
    assert_exported(lambda a, b: a @ b, numbers("float32", 0, 4), numbers("float32", 4, 3))
    assert_exported(lambda a, b: jnp.sin(a) @ b, numbers("float32", 3, 0), numbers("float32", 0, 4))
    for dtype in ("int8", "uint8", "int32"):  # onnxruntime's MatMulInteger would return what was in memory
        nodes = assert_exported(
            lambda a, b: (jnp.matmul(a, b, preferred_element_type=jnp.int32), jnp.einsum("ab,cb->ca", a, b.T)),
            numbers(dtype, 3, 0),
            numbers(dtype, 0, 4),
        )
        assert not {"MatMul", "MatMulInteger"} & set(nodes)
