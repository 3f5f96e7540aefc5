"""What `dir` shows of each public package: exactly its public names, all of which are documented."""

import importlib
import importlib.util
import re
import sys
from types import ModuleType

import pytest
from support.documents import ROOT

import jquant

PUBLIC = {
    "jquant": """
        DescriptorError DescriptorTypeError DynamicQuantizeOutput Error FeatureLevel Implementation MxQuantizeOutput
        Nvfp4QuantizeOutput PackedBlockMatrix PackedMatrix QuantizeMode QuantizeOutput RangeOutput RoundMode
        ScaleBias ScaleGranularity ScaleZeroPoint __version__ block_scaled_matmul calibration checkpoints clip clip1
        clip_gradient clip_gradient1 convolution_integer convolution_integer_to_float dequantize dequantize_linear
        dot_general dynamic_quantize_linear exact fake_quantize feature_level gather_block_quantized hadamard_transform
        kv_cache matmul_integer matmul_integer_to_float matmul_n_bits mx_dequantize mx_quantize nvfp4_dequantize
        nvfp4_quantize onnx
        pack_integers pack_matrix quantize quantize_and_dequantize quantize_down_and_shrink_range quantize_linear
        quantized_gemm quantized_linear_add quantized_linear_average_pool quantized_linear_concat
        quantized_linear_convolution quantized_linear_global_average_pool quantized_linear_leaky_relu
        quantized_linear_matmul quantized_linear_multiply quantized_linear_sigmoid quantized_linear_softmax
        requantization_range requantization_range_per_channel requantize requantize_per_channel scale_and_zero_point
        transform unpack_integers
    """,
    "jquant.calibration": """
        Histogram Observer Range calibrate entropy mean_squared_error min_max moving_average percentile
    """,
    "jquant.checkpoints": """
        Checkpoint CheckpointError PackedWeight QuantizedWeight load
    """,
    "jquant.exact": """
        difference narrow product quotient reciprocal round_half_away round_half_even round_half_up seal sum widen
    """,
    "jquant.kv_cache": """
        KeyValueCache append attend init
    """,
    "jquant.onnx": """
        Model ModelError compare export load
    """,
    "jquant.onnx.compare": """
        Exported ExportedOutput Output Row Times end_to_end exported nodes table
    """,
    "jquant.transform": """
        Activations Assignment InputStatistics MixedPrecision QuantizedFunction Recipe Report Row Scheme SiteChoice
        SiteReport Sites TransformError TransformTypeError adapters calibrate dynamic_int8 gptq_int4 int4_by_rows
        mixed_precision quantization_aware quantize report sites static_int8 weight_only_float8 weight_only_int4
        weight_only_int8 weight_only_mxfp4 weight_only_nvfp4
    """,
    "jquant.transform.adapters": """
        attach init merge
    """,
}
DOCS = ROOT / "docs"
specification = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
generated_pages = importlib.util.module_from_spec(specification)
specification.loader.exec_module(generated_pages)
PAGES = {path: name for name, (path, _) in generated_pages.MODULES.items()}  # the name of the page of each module


def reference(package: str) -> set[str]:
    """The names that the generated pages of a package describe."""
    if package == "jquant":
        text = "\n".join((*generated_pages.pages().values(), generated_pages.types_page()))
    else:
        text = generated_pages.module_page(PAGES[package])
    return set(re.findall(r"^::: .*\.(\w+)$", text, re.MULTILINE))


@pytest.mark.parametrize("package", PUBLIC)
def test_dir(package):
    """And star import works: it gives the same names, without those that are imported on first use."""
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    names = PUBLIC[package].split()
    module = importlib.import_module(package)
    assert dir(module) == names
    star: dict = {}
    exec(f"from {package} import *", star)
    lazy = {"__version__", "checkpoints", "onnx"} if package == "jquant" else set()
    assert star.keys() - {"__builtins__"} == {*module.__all__} == {*names} - lazy
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PUBLIC)
def test_documented(package):
    """Each function and class has a docstring, which a generated page shows; each module has such a page."""
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    values = {name: getattr(importlib.import_module(package), name) for name in PUBLIC[package].split()}
    modules = {value.__name__ for value in values.values() if isinstance(value, ModuleType)}
    assert modules <= PAGES.keys()
    others = {name: value for name, value in values.items() if callable(value)}
    assert others.keys() == reference(package)
    for name, value in others.items():
        assert not (value.__doc__ or f"{name}(").startswith(f"{name}("), name  # which a dataclass has without one of its own


def test_modules():
    """Every module that has a page is in the table of public names, with all of them."""
    assert {"jquant", *PAGES} == PUBLIC.keys()


def test_without_the_package_onnx(monkeypatch):
    """`jquant.onnx` is not shown where it cannot be imported, so `help(jquant)` works."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert set(PUBLIC["jquant"].split()) - set(dir(jquant)) == {"onnx"}
