"""Products with matrices that an index or groups of rows select from a stack, composed by hand, one product at a time."""

import numpy as np

from jquant.transform import Activations


def selected_product(ops, letters, x, w, index, *, site):
    """The product of `x` and ``w[index]``, whose first letters are those of the index."""
    scheme = ops._scheme(site, "matmul")
    x_letters, w_letters, output_letters = letters.replace("->", ",").split(",")
    of_index, own = w_letters[: index.ndim], w_letters[index.ndim :]
    contracted = [letter for letter in x_letters if letter in own and letter not in output_letters]
    quantized = None
    if scheme.activations != Activations.FLOAT:
        rows = tuple(map(x_letters.index, contracted)) if scheme.activations == Activations.DYNAMIC_ROW else None
        quantized = ops._quantized_input(x, site, scheme, rows, None)
    rest = "".join(letter for letter in x_letters if letter not in of_index)
    kept = "".join(letter for letter in output_letters if letter not in of_index)
    results = {}
    for position in np.ndindex(index.shape):
        place = dict(zip(of_index, position, strict=True))
        row = tuple(place.get(letter, slice(None)) for letter in x_letters)

        def at(array, row=row):
            return array[row] if np.ndim(array) else array

        number = int(index[position])
        matrix = w[min(max(number, -len(w)), len(w) - 1)]
        one = f"{rest},{own}->{kept}"
        if quantized is None:
            result = ops.product(one, at(x), matrix, site=site)
        else:
            values, scale, zero_point = quantized
            result = ops.multiply(one, (at(values), at(scale), zero_point), matrix, scheme, x.dtype)
        results[position] = np.asarray(result) if number < len(w) else np.full(result.shape, np.nan, result.dtype)
    stacked = np.stack(list(results.values())).reshape(*index.shape, *results[(0,) * index.ndim].shape)
    order = of_index + kept
    return stacked.transpose([order.index(letter) for letter in output_letters])


def ragged_product(ops, x, w, sizes, *, site):
    """Each group of rows times a matrix of its own; 0 for the rows behind the last group."""
    scheme = ops._scheme(site, "matmul")
    quantized = None
    if scheme.activations != Activations.FLOAT:
        rows = (1,) if scheme.activations == Activations.DYNAMIC_ROW else None
        quantized = ops._quantized_input(x, site, scheme, rows, None)
    output = np.zeros((x.shape[0], w.shape[2]), x.dtype)
    start = 0
    for matrix, size in zip(w, np.asarray(sizes), strict=True):
        group = slice(start, start + int(size))
        start = group.stop
        if not size:
            continue
        if quantized is None:
            output[group] = ops.product("mk,kn->mn", x[group], matrix, site=site)
        else:
            values, scale, zero_point = quantized
            row_scale = scale[group] if np.ndim(scale) else scale
            output[group] = ops.multiply("mk,kn->mn", (values[group], row_scale, zero_point), matrix, scheme, x.dtype)
    return output
