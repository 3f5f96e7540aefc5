"""Quantization and dequantization by scale and zero point, and packed integers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant

from . import scaled_blocks
from .arguments import (
    BYTES,
    COLUMNS,
    FLOATS,
    INTEGERS,
    ROWS,
    abstract,
    at_least,
    at_most,
    boolean,
    bound,
    data_type,
    dtype_of,
    integer,
    level,
    like,
    scale,
    zero_point,
)
from .call import Argument, Call
from .kinds import (
    Boolean,
    Integer,
    Mask,
    Tensor,
    exactly,
    one_element_or,
    ranks,
)
from .samples import floats, ints


def calls() -> list[Call]:
    x, q = floats(ROWS, COLUMNS), ints("uint8", ROWS, COLUMNS)
    narrow = "int8 uint8 int4 uint4"
    aligned = (ROWS, COLUMNS), (1, COLUMNS), (ROWS, 1)
    per_axis, per_block = one_element_or((COLUMNS,)), one_element_or((ROWS, 2), (1, 2))
    values = np.full(COLUMNS, 0.5, np.float32), np.full((ROWS, 2), 0.5, np.float32)
    no_blocks = integer("block_size", None, (), optional=True)
    no_axis = integer("axis", None, range(-2, 2), optional=True)

    def granularities(
        name: str, tensor: Argument, default_dtype: Callable[..., Any], data_types: str, first: str
    ) -> list[Call]:
        """Calls with scales per tensor or broadcast, per axis, and per block."""

        def promise(input: Any, scale: Any, zero_point: Any, output_dtype: Any = None, **_: Any) -> Any:
            return like(input, output_dtype or default_dtype(input, scale, zero_point))

        quantizes = name == "quantize_linear"
        scales = {"data_types": "float32" if quantizes else FLOATS}
        zeros = {"data_types": narrow, "scalar": "uint8"} if quantizes else {}
        saturating = (
            {"saturate": Argument(True, Boolean((True,)), "saturate")} if quantizes else {}
        )  # integers always saturate
        if quantizes:
            saturating["precision"] = data_type("precision", None, "float32")
        wide = Tensor("float32 int32" if quantizes else tensor.kind.data_types, lambda s: len(s) == 2 and s[1] == COLUMNS)
        uint8_or_wide = wide if quantizes else dataclasses.replace(wide, data_types="uint8")
        return [
            Call(
                name,
                {
                    "input": tensor,
                    "scale": scale("scale", shapes=one_element_or(*aligned), **scales),
                    "zero_point": zero_point("zero_point", shapes=one_element_or(*aligned), **zeros),
                    "axis": no_axis,
                    "block_size": no_blocks,
                    "output_dtype": data_type("output_dtype", None, data_types),
                    **saturating,
                    "feature_level": level(first),
                },
                promise,
            ),
            Call(
                name,
                {
                    "input": dataclasses.replace(tensor, kind=uint8_or_wide, names="input"),
                    "scale": scale("scale", values[0], per_axis, **scales),
                    "zero_point": zero_point("zero_point", ints("uint8", COLUMNS), per_axis, **zeros),
                    "axis": integer("axis", 1, (1, -1)),
                    "block_size": no_blocks,
                },
                promise,
            ),
            Call(
                name,
                {
                    "input": dataclasses.replace(
                        tensor, kind=dataclasses.replace(wide, shapes=exactly(x.shape)), names="input"
                    ),
                    "scale": scale("scale", values[1], per_block, **scales),
                    "zero_point": zero_point("zero_point", 3, per_block, **zeros),
                    "axis": integer("axis", -1, (1, -1)),
                    "block_size": integer("block_size", 2, (2,)),
                },
                promise,
            ),
        ]

    def dynamic(input: Any, output_dtype: Any, **_: Any) -> Any:
        return jquant.DynamicQuantizeOutput(like(input, output_dtype), abstract((), "float32"), abstract((), output_dtype))

    def expressed(min: Any, dtype: Any, **_: Any) -> Any:
        return jquant.ScaleZeroPoint(abstract(jnp.shape(min), "float32"), abstract(jnp.shape(min), dtype))

    def ends(low: Any, high: Any) -> dict[str, Argument]:
        same = exactly(jnp.shape(low))
        return {
            "min": bound("min", low, at_most(1), same),
            "max": bound("max", high, at_least(-1), same),
            "dtype": data_type("dtype", "INT8", f"{narrow} int16 uint16 int2 uint2"),
            "symmetric": boolean("symmetric"),
            "narrow_range": boolean("narrow_range"),
        }

    mask = Mask("bool", exactly((), (1, 1), (ROWS, COLUMNS), *aligned), optional=True)
    any_float = Tensor(FLOATS, ranks(0, 8), "float32")
    masked = dataclasses.replace(any_float, shapes=exactly(x.shape))
    return [
        *granularities(
            "quantize_linear",
            Argument(x, Tensor("float32 int32 float16", ranks(0, 8)), "input"),
            lambda input, scale, zero_point: dtype_of(zero_point, "uint8"),
            narrow,
            "3_0",
        ),
        *granularities(
            "dequantize_linear",
            Argument(q, Tensor(f"{INTEGERS} int4 uint4", ranks(0, 8)), "input"),
            lambda input, scale, zero_point: dtype_of(scale, "float32"),
            "float32",
            "3_0",
        ),
        *(
            Call(
                "dynamic_quantize_linear",
                {
                    "input": Argument(x, kind, "input"),
                    "output_dtype": data_type("output_dtype", "UINT8", BYTES),
                    "axis": Argument(None, Integer((), optional=True), "axis"),
                    "symmetric": Argument(False, Boolean((False,)), "symmetric"),
                    "where": Argument(where, mask, "where"),
                    "feature_level": level("4_0"),
                },
                dynamic,
            )
            for where, kind in ((None, any_float), (x > 0, masked))
        ),
        Call("scale_and_zero_point", ends(-1.0, 1.0), expressed),
        Call("scale_and_zero_point", ends(np.full(3, -1, np.float32), np.full(3, 1, np.float32)), expressed),
        *scaled_blocks.calls(),
        Call(
            "pack_integers",
            {"x": Argument(ints("int4", ROWS, COLUMNS), Tensor("int4 uint4 int2 uint2", ranks(1, 99)), "x")},
            lambda x: abstract((*x.shape[:-1], -(-x.shape[-1] // 2)), "uint8"),
        ),
        *(
            Call(
                "unpack_integers",
                {
                    "packed": Argument(q, Tensor("uint8", packs), "packed"),
                    "dtype": data_type("dtype", "INT4", data_types),
                    "size": integer("size", size, (5, 6), optional=True),
                },
                lambda packed, dtype, size: abstract(
                    (*packed.shape[:-1], packed.shape[-1] * (8 // jnp.iinfo(dtype).bits) if size is None else size), dtype
                ),
            )
            for size, packs, data_types in (
                (None, ranks(1, 99), "int4 uint4 int2 uint2"),
                (5, lambda shape: shape[-1:] == (3,), "int4 uint4"),
            )
        ),
    ]
