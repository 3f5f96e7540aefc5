"""Weights of GPTQ, AWQ and auto-round: their values, activation order, block sizes, errors and warnings."""

import functools
import itertools
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

import jquant.checkpoints
from jquant.checkpoints import CheckpointError, groups
from jquant.files.stored_tensor import StoredTensor

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
    """One block, equal blocks, and a shorter last block, with g_idx and without."""
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
    """Format gptq subtracts 1 from zero points by words, where a 0 borrows from its neighbour; gptq_v2 does not."""
    rng = np.random.default_rng(bits)
    zeros = rng.integers(0, 2**bits, (blocks, 64)) * rng.integers(0, 2, (blocks, 64))  # at least half of them 0
    zeros[:, :8] = [2**bits - 2, 0, 0, 2**bits - 1, 1, 0, 2**bits - 1, 2]
    zeros[0, -8:] = 0  # whole words
    weights = []
    for format_ in ("gptq", "gptq_v2"):
        model = files.gptq(np.random.default_rng(0), bits, format_=format_, n=64, group_size=64 // blocks, zeros=zeros)
        weight = loaded(model, tmp_path)
        np.testing.assert_array_equal(weight.zero_point.astype(int), zeros)
        assert weight.zero_point.dtype == weight.values.dtype == np.dtype("uint8" if bits == 8 else "uint4")
        weights.append(weight)
        count("zero points of GPTQ", zeros.size)
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), *weights)


def test_settings_for_single_layers(tmp_path):
    """GPTQModel's `dynamic` has settings for patterns of names: the tensors determine which size the groups have."""
    model = files.gptq(np.random.default_rng(0), 8)
    model.config.update(bits=4, group_size=32, dynamic={"+:layer": {"bits": 8, "group_size": 16}})
    assert loaded(model, tmp_path).block_size == 16
    model = files.gptq(np.random.default_rng(0), k=72, group_size=32, index=False)
    model.config["dynamic"] = {"+:other": {"group_size": 64}}
    assert loaded(model, tmp_path).block_size == 32
    model.config["dynamic"]["+:layer"] = {"group_size": 24}
    with pytest.raises(CheckpointError, match="which a group_size of each of 24 and 32 gives"):
        loaded(model, tmp_path)


def test_equal_groups_without_a_configured_size(tmp_path):
    model = files.gptq(np.random.default_rng(0), index=False)
    del model.config["group_size"]
    assert loaded(model, tmp_path).block_size == 16
    model = files.gptq(np.random.default_rng(0), k=72, group_size=16, order=True)
    del model.config["group_size"]
    assert loaded(model, tmp_path).block_size == 16  # the index determines it
    model = files.gptq(np.random.default_rng(0), k=72, group_size=16, index=False)
    del model.config["group_size"]
    with pytest.raises(CheckpointError, match="no group_size is configured"):
        loaded(model, tmp_path)


@pytest.mark.parametrize("order", [True, False])
def test_the_key_format(order, tmp_path):
    """Newer configurations have `format`, `checkpoint_format` in older ones; if both are present, they must agree."""
    for format_ in ("gptq", "gptq_v2"):
        model = files.gptq(np.random.default_rng(0), format_=format_, order=order)
        model.config["format"] = model.config.pop("checkpoint_format")
        model.config["method"] = model.config.pop("quant_method")
        loaded(model, tmp_path)
    model.config["checkpoint_format"] = "gptq"
    with pytest.raises(CheckpointError, match="checkpoint_format is gptq, but format is gptq_v2"):
        loaded(model, tmp_path)


@pytest.mark.parametrize("k", [64, 72])
def test_an_index_of_zeros(k, tmp_path):
    """With several groups, an index of zeros is a placeholder: the size is the configured one, or that of equal groups."""
    model = files.gptq(np.random.default_rng(0), k=k, group_size=32)
    model.tensors["layer.g_idx"][:] = 0
    weight = loaded(model, tmp_path)
    assert weight.block_size == 32
    assert weight.permutation is None
    del model.config["group_size"]
    if k == 64:
        assert loaded(model, tmp_path).block_size == 32
    else:
        with pytest.raises(CheckpointError, match=r"which blocks of 24 to 35 give, .*=\{\.\.\., 'group_size': 32\}"):
            loaded(model, tmp_path)
    model.config.update(group_size=32, desc_act=True)
    with pytest.raises(CheckpointError, match=r"'layer.g_idx': is 0 throughout, but the . blocks are in"):
        loaded(model, tmp_path)
    model.config["static_groups"] = True
    assert loaded(model, tmp_path).block_size == 32


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    "packing",
    [
        *("auto_round:auto_gptq", "auto_round:gptq:exllamav2", "auto_gptq"),
        *("auto_round", "auto_round:exllamav2", "auto_round:gptqmodel", "auto_round:triton"),
    ],
)
def test_auto_round(bits, packing, tmp_path):
    """The packing format determines whether zero points are stored minus 1, as for AutoGPTQ's kernels."""
    model = files.auto_round(np.random.default_rng(bits), bits, packing=packing)
    weight = loaded(model, tmp_path)
    assert weight.block_size == 16
    assert jquant.checkpoints.load(tmp_path).kinds["layer.weight"] == f"auto-round of {bits} bits ({packing})"


def test_configurations_of_auto_round(tmp_path):
    """Earlier names of keys, settings for single layers, AWQ's layout, and missing or unsupported values."""
    model = files.auto_round(np.random.default_rng(0))
    config = model.config
    model.config["quant_method"] = "intel/auto-round"
    model.config["backend"] = model.config.pop("packing_format")
    loaded(model, tmp_path)
    for extra in ({"layer": {"bits": 4, "group_size": 16}}, {".*lay.*": {"bits": 4, "group_size": 16}}):
        loaded(model._replace(config=config | {"bits": 8, "group_size": 64, "extra_config": extra}), tmp_path)
    model.config["backend"] = "auto"
    with pytest.warns(UserWarning, match="no packing_format is configured: auto_round:auto_gptq is assumed") as caught:
        loaded(model, tmp_path)
    assert caught[0].filename == files.__file__  # the caller of `load`
    for change, message in (
        ({"packing_format": "auto_round:marlin"}, "packing_format is auto_round:marlin; it must be auto_round, auto_round:"),
        ({"packing_format": ["auto_round"]}, r"packing_format is \['auto_round'\]"),
        ({"packing_format": "auto_round", "data_type": "mx_fp"}, "data_type is mx_fp; it must be int"),
        ({"packing_format": "auto_round", "bits": 8}, "but 8 are configured"),
        ({"packing_format": "auto_round", "bits": 8, "extra_config": {"a": {"bits": 2}}}, "but 8 or 2 are configured"),
    ):
        with pytest.raises(CheckpointError, match=message):
            loaded(model._replace(config=config | change), tmp_path)
    model = files.awq(np.random.default_rng(0))
    for packing in ("auto_round:auto_awq", "auto_round:awq:exllamav2"):
        config = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 32}
        loaded(model._replace(config=config), tmp_path)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("format_", ["gptq", "gptq_v2"])
def test_symmetric_weights_in_the_other_format(bits, format_, tmp_path):
    """The zero points of a symmetric weight are known: if the other format results in these, it is assumed."""
    model = files.gptq(np.random.default_rng(0), bits, format_=format_, sym=True)
    model.config["checkpoint_format"] = "gptq" if format_ == "gptq_v2" else "gptq_v2"
    wrong = 2 ** (bits - 1) + (1 if format_ == "gptq_v2" else -1)
    stored = "as they are" if format_ == "gptq_v2" else "less 1"
    message = f"makes its zero points {wrong}, not {2 ** (bits - 1)}: .* is assumed, as if they were stored {stored}"
    with pytest.warns(UserWarning, match=message):
        loaded(model, tmp_path)
    model.config["sym"] = False
    assert not np.array_equal(
        jquant.checkpoints.load(model.write(tmp_path))["layer.weight"].dequantize(), model.expected["layer.weight"]
    )


def test_contradictions(tmp_path):
    """A configuration that contradicts the tensors, where the weight is clear: one warning per checkpoint."""
    rng = np.random.default_rng(0)
    models = {
        "sym is true, but format gptq makes its zero points 0 to 15, not 8: they are taken": (files.gptq(rng), "sym", True),
        "has an order of activations, but desc_act is false: the order is": (files.gptq(rng, order=True), "desc_act", False),
        "its zero points are .*, not 8 as in a symmetric weight: they are taken": (files.awq(rng), "zero_point", False),
    }
    for message, (model, key, value) in models.items():
        model.config[key] = value
        tensors = {f"{prefix}.{name}": tensor for prefix in "ab" for name, tensor in model.tensors.items()}
        checkpoint = jquant.checkpoints.load(model._replace(tensors=tensors).write(tmp_path))
        with pytest.warns(UserWarning, match=message) as caught:
            weights = [checkpoint[f"{prefix}.layer.weight"].dequantize() for prefix in "ab"]
        assert len(caught) == 1
        assert "tensor 'a.layer" in str(caught[0].message)
        assert caught[0].filename == __file__
        for weight in weights:
            np.testing.assert_array_equal(weight, model.expected["layer.weight"], strict=True)


def test_sizes_of_blocks(count):
    """Without a configuration: the only size that results in the number of blocks, or equal blocks of a power of two."""
    scales = StoredTensor(pathlib.Path("x"), "scales", np.dtype(np.float16), (1, 1), 0, "F16")
    compared = 0
    for k in range(1, 129):
        numbers = [-(-k // size) for size in range(1, k + 1)]
        for blocks in range(1, k + 2):
            fitting = [size for size, number in enumerate(numbers, 1) if number == blocks]
            powers = [size for size in fitting if size * blocks == k and size in (1, 2, 4, 8, 16, 32, 64)]
            expected = [k] if blocks == 1 else fitting if len(fitting) == 1 else powers
            try:
                actual = [groups.block_size(scales, k, blocks, (), "")]
            except CheckpointError:
                actual = []
            assert actual == expected, (k, blocks)
            compared += 1
    count("sizes of blocks", compared)


def test_awq(tmp_path):
    weight = loaded(files.awq(np.random.default_rng(0)), tmp_path)
    assert weight.shape == (64, 16)
    assert weight.block_size == 32
    assert weight.values.dtype == ml_dtypes.uint4


def test_other_tensors_are_arrays(tmp_path):
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
    "blocks of another size": (lambda t, c: c.update(group_size=20), "makes blocks of 16 rows, but 20 are configured"),
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
    """Each error names the file and the tensor."""
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
