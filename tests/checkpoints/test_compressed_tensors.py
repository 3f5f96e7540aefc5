"""Weights of compressed-tensors: their values, scales and zero points, and errors and warnings."""

import ast
import itertools
import re

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (extra: recipes)")

import jquant.checkpoints
from jquant.checkpoints import CheckpointError

from . import files
from .files import loaded


@pytest.mark.parametrize(
    ("bits", "sym", "order", "group_size"), list(itertools.product((2, 4, 8), (True, False), (False, True), (16, None)))
)
def test_pack_quantized(bits, sym, order, group_size, tmp_path):
    model = files.pack_quantized(np.random.default_rng(bits), bits, sym=sym, order=order, group_size=group_size)
    weight = loaded(model, tmp_path)
    assert weight.shape == (64, 20)
    assert weight.values.dtype.name == ("int8" if bits == 8 else "int4")
    assert (weight.zero_point is None) == sym
    assert (weight.permutation is not None) == (order and group_size is not None)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("packed_zeros", [True, False])
def test_scales_and_zero_points(dtype, packed_zeros, tmp_path):
    """Zero points packed into words, or one per byte; the columns do not fill the last word."""
    model = files.pack_quantized(
        np.random.default_rng(0), k=36, n=7, group_size=12, sym=False, dtype=dtype, packed_zeros=packed_zeros
    )
    assert loaded(model, tmp_path).scale.dtype == dtype


def test_unused_index(tmp_path):
    """An index that is -1 everywhere: the columns are in order."""
    model = files.pack_quantized(np.random.default_rng(0))
    model.tensors["layer.weight_g_idx"] = np.full(64, -1, np.int32)
    assert loaded(model, tmp_path).permutation is None


@pytest.mark.parametrize("structure", ["16x48", "016x0048", [16, 48]])
def test_blocks_as_text(structure, tmp_path):
    model = files.naive_quantized(np.random.default_rng(0), strategy="block", n=40, k=100, block=(16, 48))
    model.config["config_groups"]["group_0"]["weights"]["block_structure"] = structure
    assert loaded(model, tmp_path).block_size == 48


@pytest.mark.parametrize("structure", ["16x", "16x48x2", "-16x48", "16x0", "٣x48", "9" * 5000 + "x1", 16, [16]])
def test_blocks_of_another_text(structure, tmp_path):
    model = files.naive_quantized(np.random.default_rng(0), strategy="block", n=40, k=100, block=(16, 48))
    model.config["config_groups"]["group_0"]["weights"]["block_structure"] = structure
    with pytest.raises(CheckpointError, match=r"block_structure is .*; it must be two sizes"):
        loaded(model, tmp_path)


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
@pytest.mark.parametrize("scales", [ml_dtypes.bfloat16, np.float32])
def test_naive_quantized(dtype, strategy, scales, tmp_path):
    for sym in (True, False) if dtype == np.int8 else (True,):
        model = files.naive_quantized(np.random.default_rng(0), dtype, sym=sym, strategy=strategy, scales=scales)
        weight = loaded(model, tmp_path)
        assert weight.shape == (24, 10)
        assert weight.values.dtype == dtype
        assert weight.packable == (dtype == np.int8)


def test_shapes_of_one_scale(tmp_path):
    model = files.naive_quantized(np.random.default_rng(0), strategy="tensor")
    for shape in ((), (1,), (1, 1)):
        model.tensors["layer.weight_scale"] = model.tensors["layer.weight_scale"].reshape(shape)
        loaded(model, tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        files.pack_quantized(np.random.default_rng(0), k=72, group_size=32, sym=False),
        files.naive_quantized(np.random.default_rng(0), strategy="group", k=72, block=(1, 32)),
        files.naive_quantized(np.random.default_rng(0), strategy="block", n=4, k=200, block=(1, 128)),
        files.naive_quantized(np.random.default_rng(0), strategy="block", n=1, k=200, block=(128, 128)),
    ],
    ids=["packed groups", "groups", "blocks of a row", "a row of blocks"],
)
def test_short_last_blocks(model, tmp_path):
    """The configured size is used, although equal blocks of another size would result in the same number."""
    weight = loaded(model, tmp_path)
    assert weight.block_size in (32, 128)
    assert weight.shape[0] % weight.block_size


def test_groups_without_a_configuration(tmp_path):
    """Equal blocks of a power of two are accepted."""
    model = files.pack_quantized(np.random.default_rng(0))._replace(config=None)
    assert loaded(model, tmp_path).block_size == 16
    model = files.pack_quantized(np.random.default_rng(0), k=72, group_size=16)._replace(config=None)
    with pytest.raises(CheckpointError, match="has 5 scales for each 72 elements, which blocks of 15 to 17 give"):
        loaded(model, tmp_path)
    model = files.naive_quantized(np.random.default_rng(0), strategy="block")._replace(config=None)
    with pytest.raises(CheckpointError, match=r"does not fit groups in the rows of 10 x 24.*'block_structure': \[ROWS"):
        loaded(model, tmp_path)


@pytest.mark.parametrize("group_size", [32, 25])
@pytest.mark.parametrize("builder", ["pack_quantized", "naive_quantized"])
def test_ambiguous_groups(builder, group_size, tmp_path):
    """Four scales for 100 columns may be groups of 25 to 33; the configuration that the message suggests is enough."""
    options = {"group_size": group_size} if builder == "pack_quantized" else {"strategy": "group", "block": (1, group_size)}
    model = getattr(files, builder)(np.random.default_rng(0), k=100, **options)._replace(config=None)
    with pytest.raises(CheckpointError, match="has 4 scales for each 100 elements, which blocks of 25 to 33 give") as error:
        loaded(model, tmp_path)
    config = ast.literal_eval(re.search(r"quantization_config=(.*)\)$", str(error.value))[1])
    weights = config["config_groups"]["group_0"]["weights"]
    assert weights == {"group_size": 32}
    weights["group_size"] = group_size
    assert loaded(model._replace(config=config), tmp_path).block_size == group_size
    tensors = {**model.tensors, "layer.weight_scale": model.tensors["layer.weight_scale"][:, :1]}
    weight = jquant.checkpoints.load(model._replace(tensors=tensors).write(tmp_path), quantization_config={})["layer.weight"]
    assert weight.block_size == 100


def test_contradictions(tmp_path):
    """A configuration that contradicts the tensors, where the weight is clear: a warning."""
    rng = np.random.default_rng(0)
    channel = {"strategy": "channel", "group_size": None}
    missing = "there is no layer.weight_zero_point: zero points of 0 are assumed"
    cases = [
        (files.pack_quantized(rng, sym=False), {"symmetric": True}, "symmetric is true, but its zero points are not all 0"),
        (files.pack_quantized(rng), {"symmetric": False}, missing),
        (files.naive_quantized(rng, sym=False), {"symmetric": True}, "symmetric is true, but its zero points are not all 0"),
        (files.naive_quantized(rng), {"symmetric": False}, missing),
        (files.naive_quantized(rng), {"strategy": "group", "group_size": 8}, "blocks of 1 x 8 in 10 x 24 are configured"),
        (files.naive_quantized(rng, strategy="tensor"), channel, "1 x 24 in .*: one scale for the weight is assumed"),
        (files.naive_quantized(rng), {"strategy": "tensor"}, "blocks of 10 x 24 in .*: one scale for each row is assumed"),
    ]
    for model, change, message in cases:
        model.config["config_groups"]["group_0"]["weights"].update(change)
        with pytest.warns(UserWarning, match=message) as caught:
            loaded(model, tmp_path)
        assert len(caught) == 1


def test_no_strategy(tmp_path):
    """One scale per tensor, unless a group size is configured."""
    model = files.naive_quantized(np.random.default_rng(0), strategy="tensor")
    del model.config["config_groups"]["group_0"]["weights"]["strategy"]
    loaded(model, tmp_path)


def test_groups_of_two_configured_sizes(tmp_path):
    """Layers may have different sizes: the number of scales determines which, unless it fits both."""
    model = files.pack_quantized(np.random.default_rng(0), k=72, group_size=32)
    groups = model.config["config_groups"]
    groups["group_1"] = {"weights": groups["group_0"]["weights"] | {"group_size": 16}}
    assert loaded(model, tmp_path).block_size == 32
    groups["group_1"]["weights"]["group_size"] = 24
    with pytest.raises(CheckpointError, match="which blocks of 1 x 24 and of 1 x 32 in 20 x 72 give"):
        loaded(model, tmp_path)


def test_zero_points_of_floats(tmp_path):
    """Old files have zero points for floats, all of them 0."""
    model = files.naive_quantized(np.random.default_rng(0), ml_dtypes.float8_e4m3fn)
    model.tensors["layer.weight_zero_point"] = np.zeros((10, 1), ml_dtypes.float8_e4m3fn)
    assert loaded(model, tmp_path).zero_point is None
    model.tensors["layer.weight_zero_point"][3] = 1
    with pytest.raises(CheckpointError, match=r"'layer.weight_zero_point': is not 0"):
        loaded(model, tmp_path)


def test_scales_of_activations_are_arrays(tmp_path):
    model = files.naive_quantized(np.random.default_rng(0))
    model.tensors["layer.input_scale"] = np.float32([0.5])
    checkpoint = jquant.checkpoints.load(model.write(tmp_path))
    assert checkpoint.kinds == {"layer.weight": "int-quantized, int8", "layer.input_scale": "float32"}


PACKED = {
    "no scale": (lambda t, c: t.pop("layer.weight_scale"), "'layer.weight_packed': there is no layer.weight_scale"),
    "no shape": (lambda t, c: t.pop("layer.weight_shape"), "there is no layer.weight_shape"),
    "other shape": (lambda t, c: t["layer.weight_shape"].__setitem__(1, 2**40), "does not fit layer.weight_packed"),
    "negative shape": (lambda t, c: t["layer.weight_shape"].__setitem__(1, -64), "does not fit layer.weight_packed"),
    "3 bits": (lambda t, c: t["layer.weight_shape"].__setitem__(1, 80), "an unknown number of bits"),
    "another type": (lambda t, c: t.update({"layer.weight_packed": t["layer.weight_packed"].view(np.uint8)}),
                     "is U8, for weights of type float, but type int is configured"),
    "two scales": (lambda t, c: t.update({"layer.weight_global_scale": np.ones(1)}), "which only nvfp4-pack-quantized has"),
    "rows of scales": (lambda t, c: t.update({"layer.weight_scale": t["layer.weight_scale"][:19]}), "blocks of 1 x 16"),
    "columns of scales": (lambda t, c: t.update({"layer.weight_scale": t["layer.weight_scale"][:, :3]}), "blocks of 1 x 16"),
    "zero points": (lambda t, c: t.update({"layer.weight_zero_point": np.zeros((20, 3), np.int8)}), "it must be (20, 4)"),
    "large zero points": (lambda t, c: t.update({"layer.weight_zero_point": np.full((20, 4), 8, np.int8)}),
                          "outside the range of 4 bits"),
    "length of the index": (lambda t, c: t.update({"layer.weight_g_idx": np.zeros(63, np.int32)}), "each of the 64 columns"),
    "index out of range": (lambda t, c: t.update({"layer.weight_g_idx": np.full(64, 4, np.int32)}), "there are 4 blocks"),
    "order without an index": (lambda t, c: c["config_groups"]["group_0"]["weights"].update(actorder="group"),
                               "(actorder), but there is no layer.weight_g_idx"),
    "blocks of another size": (lambda t, c: (t.update({"layer.weight_g_idx": np.arange(64, dtype=np.int32) // 16}),
                                             c["config_groups"]["group_0"]["weights"].update(group_size=20)),
                               "makes blocks of 16 rows, but 20 are configured"),
    "floats": (lambda t, c: c["config_groups"]["group_0"]["weights"].update(type="float"), "but type float is configured"),
    "format": (lambda t, c: c.update(format="marlin-24"), "its format is 'marlin-24'"),
    "bits": (lambda t, c: c["config_groups"]["group_0"]["weights"].update(num_bits=8), "an unknown number of bits"),
}  # fmt: skip
NAIVE = {
    "no scale": (lambda t, c: t.pop("layer.weight_scale"), "'layer.weight': is I8, but there is no layer.weight_scale"),
    "rank": (lambda t, c: t.update({"layer.weight": t["layer.weight"][None]}), "it must have 2 dimensions"),
    "type": (lambda t, c: t.update({"layer.weight": t["layer.weight"].astype(np.int16)}), "it must be int8 or float8"),
    "floats": (lambda t, c: c["config_groups"]["group_0"]["weights"].update(type="float"), "but type float is configured"),
    "scale of integers": (lambda t, c: t.update({"layer.weight_scale": np.ones((10, 1), np.int32)}), "is I32"),
    "rows of scales": (lambda t, c: t.update({"layer.weight_scale": t["layer.weight_scale"][:9]}), "blocks of 1 x 24"),
    "zero points": (lambda t, c: t.update({"layer.weight_zero_point": np.zeros(10, np.int8)}), "of the scale, (10, 1)"),
    "zero points, floats": (lambda t, c: t.update({"layer.weight_zero_point": np.zeros((10, 1), np.float32)}), "int8, like"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("builder", "name"),
    [(files.pack_quantized, name) for name in PACKED] + [(files.naive_quantized, name) for name in NAIVE],
)
def test_errors(builder, name, tmp_path):
    """Each error names the file and the tensor."""
    change, message = (PACKED if builder is files.pack_quantized else NAIVE)[name]
    model = builder(np.random.default_rng(0))
    change(model.tensors, model.config)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in model.tensors.items()}
    file = model._replace(tensors=tensors).write(tmp_path)
    with pytest.raises(CheckpointError) as error:
        jquant.checkpoints.load(file)["layer.weight"]
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_blocks_that_do_not_fit(tmp_path):
    model = files.naive_quantized(np.random.default_rng(0), strategy="block")
    model.config["config_groups"]["group_0"]["weights"]["block_structure"] = [10**30, 8]
    with pytest.raises(CheckpointError, match=r"does not fit blocks of 10 x 8 in 10 x 24"):
        loaded(model, tmp_path)
