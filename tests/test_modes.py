"""The spellings of feature levels, modes, data types and granularities, and the errors about others."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel, QuantizeMode, RoundMode
from jquant.modes import data_type, data_type_name

LEVELS = {
    **{"1_0": 0x1000, "2_0": 0x2000, "2_1": 0x2100, "3_0": 0x3000, "3_1": 0x3100, "4_0": 0x4000, "4_1": 0x4100},
    **{"5_0": 0x5000, "5_1": 0x5100, "5_2": 0x5200, "6_0": 0x6000, "6_1": 0x6100, "6_2": 0x6200, "6_3": 0x6300},
    "6_4": 0x6400,
}
DATA_TYPES = (
    *("int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32"),
)


# Feature levels.


def test_feature_levels():
    assert [level.name for level in FeatureLevel] == [*(f"LEVEL_{level}" for level in LEVELS), "EXTENDED"]
    assert [level.value for level in FeatureLevel] == [*LEVELS.values(), 0xFFFF]
    assert FeatureLevel.LATEST is FeatureLevel.LEVEL_6_4


def test_the_order_of_feature_levels():
    levels = list(FeatureLevel)
    assert levels == sorted(levels)
    assert levels[-1] is FeatureLevel.EXTENDED
    assert FeatureLevel.LEVEL_2_1 < FeatureLevel.LEVEL_3_0 < FeatureLevel.LATEST < FeatureLevel.EXTENDED


@pytest.mark.parametrize(("level", "value"), LEVELS.items())
def test_spellings_of_a_feature_level(level, value):
    expected = FeatureLevel[f"LEVEL_{level}"]
    for spelling in (level, f"LEVEL_{level}", f"DML_FEATURE_LEVEL_{level}", value, expected):
        assert FeatureLevel(spelling) is expected
    assert str(expected) == level


def test_spellings_of_jquants_own_levels():
    assert FeatureLevel("LATEST") is FeatureLevel.LATEST
    assert FeatureLevel("EXTENDED") is FeatureLevel.EXTENDED
    assert (str(FeatureLevel.LATEST), str(FeatureLevel.EXTENDED)) == ("6_4", "EXTENDED")


@pytest.mark.parametrize(
    "value", ["7_0", "6.2", "6", "", "DML_FEATURE_LEVEL_", "extended", 6, 6.2, 0x6500, 4096.0, True, [], ("6_2",)]
)
def test_unknown_feature_levels(value):
    text = f"unknown feature_level {value!r}; choose one of {', '.join([*LEVELS, 'EXTENDED'])}"
    for function in (lambda level: jquant.clip(jnp.ones(2), feature_level=level), jquant.feature_level):
        with pytest.raises(DescriptorError) as raised:
            function(value)
        assert str(raised.value) == text


# Modes.


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (QuantizeMode, ["MIN_COMBINED", "MIN_FIRST", "SCALED"]),
        (RoundMode, ["HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN", "HALF_UP"]),
    ],
)
def test_modes(mode, names):
    assert [member.name for member in mode] == names
    for name in names:
        assert mode(name) is mode[name]
        assert mode(mode[name]) is mode[name]
        assert str(mode[name]) == mode[name] == name


@pytest.mark.parametrize("value", ["scaled", "SCALE", "", "MIN_COMBINED ", None, 0, [], "HALF_TO_EVEN"])
def test_unknown_modes(value):
    with pytest.raises(DescriptorError) as raised:
        jquant.quantize(jnp.ones(2), 0, 1, "qint8", mode=value)
    assert str(raised.value) == f"unknown mode {value!r}; choose one of MIN_COMBINED, MIN_FIRST, SCALED"


@pytest.mark.parametrize("value", ["half_to_even", "HALF_DOWN", "", None, 0, [], "SCALED"])
def test_unknown_round_modes(value):
    with pytest.raises(DescriptorError) as raised:
        jquant.quantize(jnp.ones(2), 0, 1, "qint8", mode="SCALED", round_mode=value)
    assert str(raised.value) == f"unknown round_mode {value!r}; choose one of HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UP"


def test_each_operator_allows_the_round_modes_of_its_document():
    x = jnp.ones(2)
    with pytest.raises(DescriptorError) as raised:
        jquant.quantize(x, 0, 1, "qint8", mode="SCALED", round_mode="HALF_UP")
    message = "quantize: round_mode is HALF_UP; the operator allows HALF_AWAY_FROM_ZERO, HALF_TO_EVEN (QuantizeV2)"
    assert str(raised.value) == message
    with pytest.raises(DescriptorError) as raised:
        jquant.quantize_and_dequantize(x, 0, 1, round_mode="HALF_AWAY_FROM_ZERO")
    message = "quantize_and_dequantize: round_mode is HALF_AWAY_FROM_ZERO; the operator allows HALF_TO_EVEN, HALF_UP"
    assert str(raised.value) == f"{message} (QuantizeAndDequantizeV4)"


# Data types.


@pytest.mark.parametrize("name", DATA_TYPES)
def test_spellings_of_a_data_type(name):
    expected = np.dtype(getattr(jnp, name))
    for spelling in (name, name.upper(), expected, expected.type, getattr(jnp, name), np.zeros((), expected).dtype):
        assert data_type("dtype", spelling) == expected
        assert isinstance(data_type("dtype", spelling), np.dtype)
    assert data_type_name(expected) == name.upper()


@pytest.mark.parametrize("stored", ["int8", "int16", "int32", "uint8", "uint16"])
def test_tensorflows_data_types(stored):
    assert data_type("dtype", f"q{stored}") == np.dtype(stored)


@pytest.mark.parametrize(
    "value",
    [
        "INT3",
        "BOOL",
        "Int8",
        "quint32",
        "qint64",
        "QINT8",
        "q8",
        "",
        3,
        1.5,
        [1],
        (1, 2),
        object(),
        True,
        np.zeros(2, np.int8),
    ],
)
def test_unknown_data_types(value):
    for argument, function in (
        ("T", functools.partial(data_type, "T")),
        ("dtype", lambda value: jquant.quantize(jnp.ones(2), 0, 1, value)),
        ("output_dtype", lambda value: jquant.quantize_linear(jnp.ones(2), 1.0, output_dtype=value)),
    ):
        with pytest.raises(DescriptorTypeError) as raised:
            function(value)
        assert str(raised.value) == (
            f"{argument} is {value!r}; it must be a dtype or one of the names FLOAT32, FLOAT16, BFLOAT16, INT64, INT32, "
            "INT16, INT8, INT4, INT2, UINT64, UINT32, UINT16, UINT8, UINT4, UINT2, FLOAT8E4M3FN, "
            "FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, FLOAT4E2M1, FLOAT8E8M0, FLOAT6E2M3, FLOAT6E3M2, "
            "qint32, qint16, qint8, quint16, quint8"
        )


def test_none_is_no_data_type():
    """NumPy would make it float64."""
    with pytest.raises(DescriptorTypeError, match=r"^dtype is None; it must be a dtype"):
        jquant.quantize(jnp.ones(2), 0, 1, None)


def test_byte_order_is_ignored():
    result = jquant.quantize_linear(jnp.ones(2), 1.0, output_dtype=np.dtype(">i2"), feature_level="EXTENDED")
    assert result.dtype == jnp.int16


# The granularity of scales.


def test_scale_granularity():
    for name in ("PER_CHANNEL", "PER_TENSOR"):
        assert jquant.ScaleGranularity(name) is jquant.ScaleGranularity[name]
        assert str(jquant.ScaleGranularity(name)) == name
    with pytest.raises(DescriptorError, match="unknown granularity 'PER_ROW'; choose one of PER_CHANNEL, PER_TENSOR"):
        jquant.ScaleGranularity("PER_ROW")
