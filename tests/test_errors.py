"""The exceptions: `jquant.Error` catches all of them, and each is also a `ValueError` or a `TypeError`."""

import numpy as np
import pytest

import jquant
from jquant import checkpoints, errors, host, transform


def raise_descriptor_error(folder):
    jquant.quantize_linear(np.ones(2, np.float32), 0.5, 300)


def raise_descriptor_type_error(folder):
    jquant.quantize_linear(np.ones(2), 0.5)


def raise_transform_error(folder):
    transform.sites(lambda params: params, {})


def raise_transform_type_error(folder):
    transform.sites(None, {})


def raise_model_error(folder):
    onnx = pytest.importorskip("jquant.onnx", reason="onnx is not installed (extra: onnx)")
    (folder / "model.onnx").write_bytes(b"no model")
    onnx.load(folder / "model.onnx")


def raise_checkpoint_error(folder):
    checkpoints.load(folder)


def raise_host_error(folder):
    host.export(np.sin, "x", native=False)


CALLS = {
    jquant.DescriptorError: raise_descriptor_error,
    jquant.DescriptorTypeError: raise_descriptor_type_error,
    transform.TransformError: raise_transform_error,
    transform.TransformTypeError: raise_transform_type_error,
    errors.ModelError: raise_model_error,
    checkpoints.CheckpointError: raise_checkpoint_error,
    host.HostError: raise_host_error,
}


@pytest.mark.parametrize("error", CALLS, ids=lambda error: error.__name__)
def test_error_catches_all(error, tmp_path):
    with pytest.raises(jquant.Error) as caught:
        CALLS[error](tmp_path)
    assert type(caught.value) is error
    assert issubclass(error, ValueError)
    assert issubclass(error, TypeError) == error.__name__.endswith("TypeError")


def test_no_other_error():
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert set(classes) == {jquant.Error, *CALLS}


def test_errors_of_types_are_errors_of_their_module():
    assert issubclass(jquant.DescriptorTypeError, jquant.DescriptorError)
    assert issubclass(transform.TransformTypeError, transform.TransformError)
