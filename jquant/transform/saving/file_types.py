"""The types of the quantized parameters that a file has, compared with those that the function has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jquant.files.diagnostics import refuse
from jquant.files.stored_tensor import StoredTensor
from jquant.packed import on_host
from jquant.packed.block_matrix import ROWS_PER_ELEMENT, Layout, PackedBlockMatrix, layout_for, zero_point_data_type
from jquant.packed.matrix import PackedMatrix
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.transform.formats.stored_weights import SMOOTHING, Stored
from jquant.transform.saving import file_arrays
from jquant.transform.saving.metadata import Blocks

_FLOATS = tuple(map(jnp.dtype, (jnp.float32, jnp.float16, jnp.bfloat16)))
_INT8_TYPES = tuple(map(np.dtype, (np.int8, np.uint8)))


class FileTypes:
    """The types of the parameters in a file, by name. What does not fit the function raises a `CheckpointError`."""

    def __init__(self, path: Path, tensors: Mapping[str, StoredTensor], blocks: Mapping[str, Blocks]):
        self._path, self._tensors, self._blocks = path, tensors, blocks
        self._unused = set(tensors)

    def parameters(self, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The types of all parameters, where `wanted` are those of the function."""
        types = {
            "sites": {name: self._site(name, stored) for name, stored in wanted["sites"].items()},
            "inputs": {name: self._static(name, each) for name, each in wanted["inputs"].items()},
            "float": {name: self._array(f"float/{name}", each) for name, each in wanted["float"].items()},
        }
        if self._unused:
            name = min(self._unused)
            self._tensors[name].refuse(f"is not a parameter of the function, as {len(self._unused)} in the file are not")
        return types

    def _site(self, name: str, wanted: Stored) -> Stored:
        where = f"sites/{name}"
        stored = {}
        for field, type in wanted.items():
            if isinstance(type, PackedMatrix):
                stored[field] = self._matrix(where, type)
            elif isinstance(type, PackedBlockMatrix):
                stored[field] = self._block_matrix(name, type)
            elif field != SMOOTHING or f"{where}/{field}" in self._tensors:  # weights of a checkpoint have no factors
                stored[field] = self._array(f"{where}/{field}", type)
        order = f"{where}/permutation"
        if order in self._tensors and isinstance(wanted["values"], PackedBlockMatrix):
            *layers, rows = self._tensors[order].shape or (0,)
            stored["permutation"] = self._typed(order, (np.dtype(np.int32),), (*layers, rows))
        return stored

    def _static(self, name: str, wanted: ScaleZeroPoint) -> ScaleZeroPoint:
        return ScaleZeroPoint(*(self._array(f"inputs/{name}/{field}", getattr(wanted, field)) for field in wanted._fields))

    def _matrix(self, where: str, wanted: PackedMatrix) -> PackedMatrix:
        *batch, rows, columns = wanted.shape
        values = self._typed(f"{where}/values", _INT8_TYPES, (*batch, rows, columns))
        zero_point = self._optional(f"{where}/zero_point", (values.dtype,), [(*batch, 1, columns), (*batch, 1, 1)])
        return PackedMatrix(wanted.data, wanted.block_sums, zero_point, np.dtype(values.dtype))

    def _block_matrix(self, name: str, wanted: PackedBlockMatrix) -> PackedBlockMatrix:
        where = f"sites/{name}"
        if name not in self._blocks:
            refuse(self._path, f"{where}/values", "its metadata do not name the blocks of this matrix")
        dtype, block_size = self._blocks[name]
        *batch, rows, columns = wanted.shape
        if block_size > 4 * rows + 64:  # rows behind the last one are in memory
            refuse(self._path, f"{where}/values", f"has blocks of {block_size} rows, and {rows} rows")
        count = -(-rows // block_size)
        in_file = dtype if dtype in _INT8_TYPES else np.dtype(np.uint8)
        self._typed(f"{where}/values", (in_file,), (*batch, on_host.rows_in_file(dtype, rows), columns))
        of_blocks = (*batch, count, columns)
        layout = layout_for(dtype, block_size)
        of_matrix = np.dtype(np.int8) if layout == Layout.CODES else dtype
        rows_of_data = count * block_size // ROWS_PER_ELEMENT[layout]
        data_type = np.dtype(np.uint16 if ROWS_PER_ELEMENT[layout] > 1 else np.int8)
        return PackedBlockMatrix(
            data=_type((*batch, rows_of_data, columns), data_type),
            scale=self._typed(f"{where}/scale", _FLOATS, of_blocks),
            zero_point=self._optional(f"{where}/zero_point", (zero_point_data_type(of_matrix),), [of_blocks]),
            minimum=self._optional(f"{where}/minimum", _FLOATS, [of_blocks]),
            dtype=of_matrix,
            block_size=block_size,
            padding=count * block_size - rows,
            layout=layout,
        )

    def _array(self, name: str, wanted: Any) -> Any:
        dtype, shape = file_arrays.file_type(wanted)
        self._typed(name, (dtype,), shape)
        type = jax.typeof(wanted)
        return _type(type.shape, type.dtype)

    def _optional(self, name: str, dtypes: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> Any:
        if name not in self._tensors:
            return None
        shape = self._tensors[name].shape
        return self._typed(name, dtypes, shape if shape in shapes else shapes[0])

    def _typed(self, name: str, dtypes: Sequence[Any], shape: Sequence[int]) -> Any:
        """The type of a tensor in the file, asserting that it has one of these dtypes, and this shape."""
        if name not in self._tensors:
            self._refuse_missing(name)
        self._unused.discard(name)
        tensor = self._tensors[name]
        dtype = tensor.dtype.newbyteorder("=")
        if dtype not in dtypes or tensor.shape != tuple(shape):
            wanted = f"{' or '.join(np.dtype(each).name for each in dtypes)}{list(shape)}"
            tensor.refuse(f"is {dtype.name}{list(tensor.shape)}, and the function has {wanted} there")
        return _type(tensor.shape, dtype)

    def _refuse_missing(self, name: str) -> NoReturn:
        refuse(self._path, name, "is missing: the file is of another function, or for inputs for which it has other sites")


def _type(shape: Sequence[int], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)
