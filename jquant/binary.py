"""What the operators have in common that take two quantized tensors, element by element, to a third."""

import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.descriptor import Descriptor, Signature
from jquant.modes import FeatureLevel
from jquant.operands import Names, Operand, broadcast_shape, output_quantization, quantized


def operands(
    table: Descriptor,
    level: FeatureLevel | None,
    names: tuple[Names, Names, Names],
    a: tuple[ArrayLike, ArrayLike, ArrayLike | None],
    b: tuple[ArrayLike, ArrayLike, ArrayLike | None],
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None,
    output_dtype: DTypeLike | str | None,
) -> tuple[*tuple[Operand | None, ...], np.dtype]:
    """Both inputs, each with its scale and zero point, and those of the output and its dtype, as the table has them."""
    one, other = (quantized(table.operator, *named) for named in ((names[0], *a), (names[1], *b)))
    scale, zero_point, dtype = output_quantization(
        table, level, names[2], output_scale, output_zero_point, output_dtype, default=one[0].dtype
    )
    output = Signature(broadcast_shape(one[0].shape, other[0].shape), dtype)
    given = (*one, *other, output, scale, zero_point)
    table.check(level, **dict(zip((*names[0], *names[1], *names[2]), given, strict=True)))
    return *one, *other, scale, zero_point, dtype
