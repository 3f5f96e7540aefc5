"""GPTQ's and AWQ's weights: their integers, what these stand for, and blocks in the order of activations."""

import functools
import itertools

import jax
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

import jquant.checkpoints
from jquant.checkpoints import CheckpointError

from . import files
from .files import loaded


@pytest.mark.parametrize(
    ("bits", "format_", "sym", "order"),
    list(itertools.product((2, 4, 8), (None, "gptq", "gptq_v2"), (False, True), (False, True))),
)
def test_gptq(bits, format_, sym, order, tmp_path):
    weight = loaded(files.gptq(np.random.default_rng(bits), bits, format_=format_, sym=sym, order=order), tmp_path)
    assert weight.shape == (64, 32)
    assert weight.block_size == 16
    assert (weight.permutation is not None) == order


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize(("k", "group_size"), [(64, -1), (64, 64), (72, 32), (8, 32)])
@pytest.mark.parametrize("index", [True, False])
def test_group_sizes(dtype, k, group_size, index, tmp_path):
    """One block, and a last one that is shorter, with the index or without."""
    model = files.gptq(np.random.default_rng(0), k=k, group_size=group_size, dtype=dtype, index=index)
    weight = loaded(model, tmp_path)
    assert weight.block_size == (k if group_size in (-1, k) else min(group_size, k))
    assert weight.permutation is None


def test_short_last_block_in_the_order_of_activations(tmp_path):
    model = files.gptq(np.random.default_rng(0), k=72, group_size=32, order=True)
    weight = loaded(model, tmp_path)
    assert weight.block_size == 32
    assert np.array_equal(np.sort(weight.permutation), np.arange(72))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("blocks", [1, 4])
def test_zero_points_that_borrow(bits, blocks, tmp_path, count):
    """Format gptq has them lessened by words: a 0 borrows from its neighbour. Version 2 has them as they are."""
    rng = np.random.default_rng(bits)
    zeros = rng.integers(0, 2**bits, (blocks, 64)) * rng.integers(0, 2, (blocks, 64))  # at least half of them 0
    zeros[:, :8] = [2**bits - 2, 0, 0, 2**bits - 1, 1, 0, 2**bits - 1, 2]
    zeros[0, -8:] = 0  # whole words
    found = []
    for format_ in ("gptq", "gptq_v2"):
        model = files.gptq(np.random.default_rng(0), bits, format_=format_, n=64, group_size=64 // blocks, zeros=zeros)
        weight = loaded(model, tmp_path)
        np.testing.assert_array_equal(weight.zero_point.astype(int), zeros)
        assert weight.zero_point.dtype == weight.values.dtype == np.dtype("uint8" if bits == 8 else "uint4")
        found.append(weight)
        count("zero points of GPTQ", zeros.size)
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), *found)


def test_layers_with_a_configuration_of_their_own(tmp_path):
    """GPTQModel's `dynamic` has patterns of names: the tensors then say what size the groups have."""
    model = files.gptq(np.random.default_rng(0), 8)
    model.config.update(bits=4, group_size=32, dynamic={"+:layer": {"bits": 8, "group_size": 16}})
    assert loaded(model, tmp_path).block_size == 16


def test_equal_groups_without_a_configured_size(tmp_path):
    model = files.gptq(np.random.default_rng(0), index=False)
    del model.config["group_size"]
    assert loaded(model, tmp_path).block_size == 16
    model = files.gptq(np.random.default_rng(0), k=72, group_size=16, index=False)
    del model.config["group_size"]
    with pytest.raises(CheckpointError, match="no group_size is configured"):
        loaded(model, tmp_path)


def test_awq(tmp_path):
    weight = loaded(files.awq(np.random.default_rng(0)), tmp_path)
    assert weight.shape == (64, 16)
    assert weight.block_size == 32
    assert weight.values.dtype == ml_dtypes.uint4


def test_other_tensors_stay(tmp_path):
    model = files.gptq(np.random.default_rng(0))
    checkpoint = jquant.checkpoints.load(model.write(tmp_path))
    assert list(checkpoint) == ["layer.weight", "layer.bias"]
    assert checkpoint.kinds == {"layer.weight": "GPTQ of 4 bits (gptq)", "layer.bias": "float16"}
    np.testing.assert_array_equal(checkpoint["layer.bias"], model.tensors["layer.bias"], strict=True)


WRONG = {
    "no scales": (lambda t, c: t.pop("layer.scales"), "'layer.qweight': there is no layer.scales"),
    "no zero points": (lambda t, c: t.pop("layer.qzeros"), "'layer.qweight': there is no layer.qzeros"),
    "3 bits": (lambda t, c: t.update({"layer.qzeros": t["layer.qzeros"][:, :3]}), "has 3 bits"),
    "rows of zero points": (lambda t, c: t.update({"layer.qzeros": t["layer.qzeros"][:2]}), "do not fit together"),
    "columns": (lambda t, c: t.update({"layer.qweight": t["layer.qweight"][:, :24]}), "do not fit together"),
    "type of words": (lambda t, c: t.update({"layer.qweight": t["layer.qweight"].astype(np.int64)}), "is I64"),
    "type of scales": (lambda t, c: t.update({"layer.scales": t["layer.scales"].astype(np.float64)}), "is F64"),
    "no column": (lambda t, c: t.update({"layer.scales": t["layer.scales"][:, :0]}), "none of size 0"),
    "length of the index": (lambda t, c: t.update({"layer.g_idx": t["layer.g_idx"][:60]}), "index for each of the 64 rows"),
    "index out of range": (lambda t, c: t["layer.g_idx"].__setitem__(5, 4), "indices from 0 to 4, but there are 4 blocks"),
    "negative index": (lambda t, c: t["layer.g_idx"].__setitem__(5, -1), "indices from -1 to 3"),
    "blocks of several sizes": (lambda t, c: t["layer.g_idx"].__setitem__(5, 1), "blocks of 15 to 17 rows"),
    "order without an index": (lambda t, c: (t.pop("layer.g_idx"), c.update(desc_act=True)), "there is no layer.g_idx"),
    "configured groups": (lambda t, c: c.update(group_size=32), "and a group_size of 32"),
    "one configured group": (lambda t, c: c.update(group_size=-1), "of the weight and a group_size of -1"),
    "no group size": (lambda t, c: c.update(group_size="16"), "group_size is 16; it must be a number of rows"),
    "configured bits": (lambda t, c: c.update(bits=8), "has 4 bits, according to the shapes of its tensors, but 8"),
    "format": (lambda t, c: c.update(checkpoint_format="marlin"), "checkpoint_format is marlin"),
    "a type for a format": (lambda t, c: c.update(checkpoint_format=["gptq"]), "checkpoint_format is"),
    "method": (lambda t, c: c.update(quant_method="exl2"), "quant_method is 'exl2'"),
    "no method": (lambda t, c: c.pop("quant_method"), "from GPTQ or AWQ"),
    "twice": (lambda t, c: t.update({"layer.weight": np.zeros(3)}),
              "'layer.weight': is present both as it is and in a quantized form"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name, tmp_path):
    """Each names the file and the tensor."""
    change, message = WRONG[name]
    model = files.gptq(np.random.default_rng(0))
    change(model.tensors, model.config)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in model.tensors.items()}
    file = model._replace(tensors=tensors).write(tmp_path)
    with pytest.raises(CheckpointError) as error:
        jquant.checkpoints.load(file)["layer.weight"]
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_errors_of_awq(tmp_path):
    model = files.awq(np.random.default_rng(0))
    file = model.write(tmp_path)
    with pytest.raises(CheckpointError, match="version gemv; it must be gemm"):
        jquant.checkpoints.load(file, quantization_config=model.config | {"version": "gemv"})
    model.tensors["layer.qzeros"] = model.tensors["layer.qzeros"][:1]
    with pytest.raises(CheckpointError, match="do not fit together"):
        jquant.checkpoints.load(model.write(tmp_path))
