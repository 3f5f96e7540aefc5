"""Convolutions of every form: their sizes, options and layouts."""

from support.sampling import one_in

# The sizes of input and filter, and the options, which together reach every implementation of the convolution.
GEOMETRIES = {
    "1x1": ((2, 5, 4, 3), (6, 5, 1, 1), {}),
    "3x2, all options": (
        (2, 3, 7, 8),
        (4, 3, 3, 2),
        {"strides": (1, 2), "dilations": (2, 1), "padding": ((1, 2), (0, 3))},
    ),
    "one filter, one window": ((1, 3, 2, 2), (1, 3, 2, 2), {}),
    "1D": ((3, 4, 9), (5, 4, 3), {"strides": (2,), "padding": ((2, 0),)}),
    "3D": ((2, 3, 3, 4, 5), (4, 3, 2, 2, 3), {"padding": ((0, 0), (1, 0), (1, 1)), "feature_level": "EXTENDED"}),
    "groups": ((2, 6, 5, 5), (9, 2, 2, 2), {"groups": 3, "padding": ((1, 1), (1, 1)), "strides": (2, 2)}),
    "depthwise": ((2, 5, 6, 5), (5, 1, 3, 3), {"groups": 5, "padding": ((1, 1), (2, 1)), "strides": (2, 1)}),
    "depthwise, 4 filters a channel": ((1, 2, 4, 4), (8, 1, 2, 2), {"groups": 2, "dilations": (2, 3)}),
    "depthwise, 5 filters a channel": ((1, 2, 4, 4), (10, 1, 2, 2), {"groups": 2, "padding": ((0, 1), (1, 0))}),
    "one channel": ((2, 1, 5, 5), (3, 1, 2, 2), {}),
    "an empty batch": ((0, 3, 4, 4), (2, 3, 2, 2), {}),
    "no channels": ((1, 0, 3, 3), (2, 0, 2, 2), {"padding": ((1, 1), (1, 1))}),
}


def one_geometry_in_two(first: int):
    """Every second geometry from `first` on, which differs between operators; the gate has all of them for each."""
    return one_in(2, "name", GEOMETRIES, first=first)


def formula(function, *operands, **options):
    """The result of a reference function, which has no feature levels."""
    return function(*operands, **{name: value for name, value in options.items() if name != "feature_level"})


def reordered(array, order, to):
    """The array with its dimensions in another order, both as strings such as "NCHW"."""
    return array.transpose([order.index(dimension) for dimension in to])
