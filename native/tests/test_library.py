"""What the library says about itself."""

import ctypes

from calls import (
    BLOCK_PRODUCT,
    CODED_BLOCK_PRODUCT,
    CONCATENATE,
    CONVOLUTION,
    DYNAMIC_QUANTIZE,
    ELEMENTWISE,
    PRODUCT,
    WEIGHT_ONLY,
    targets,
)


def test_functions():
    """The newest versions, and those before, which the same functions serve."""
    handlers = targets()
    products = {PRODUCT, BLOCK_PRODUCT, CODED_BLOCK_PRODUCT, CONVOLUTION, WEIGHT_ONLY}
    newest = products | {DYNAMIC_QUANTIZE, ELEMENTWISE, CONCATENATE}
    assert set(handlers) == newest | {"jquant_product.1", "jquant_convolution.1"}
    assert len(set(handlers.values())) == 8
    assert handlers[PRODUCT] == handlers["jquant_product.1"]
    assert handlers[CONVOLUTION] == handlers["jquant_convolution.1"]


class Version(ctypes.Structure):  # XLA_FFI_Api_Version, and so on: xla/ffi/api/c_api.h
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class Metadata(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version", Version),
        ("traits", ctypes.c_uint32),
        ("state_type", ctypes.c_int64),
    )


class MetadataExtension(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    )


class Frame(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(MetadataExtension)),
        ("others", ctypes.c_uint64 * 19),
    )


def test_headers():
    """All functions speak the version of the FFI of the oldest jaxlib. A plugin of PJRT that is older than the headers takes
    a function without complaint, and then does not find it."""
    for target, handler in targets().items():
        metadata = Metadata(ctypes.sizeof(Metadata), Version(ctypes.sizeof(Version)))
        extension = MetadataExtension(ctypes.sizeof(MetadataExtension), 1, None, ctypes.pointer(metadata))
        frame = Frame(ctypes.sizeof(Frame), ctypes.pointer(extension))
        assert not ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))(handler)(ctypes.byref(frame)), target
        assert (metadata.version.major, metadata.version.minor) == (0, 3), target
