"""What `dir` shows of each public package: exactly its public names, all of which are documented.

An operator can neither vanish nor appear unnoticed: those that are public have a section in `docs/operators.md`, and
`test_new_operator.py` compares these, the rows of the roundings in `docs/exactness.md` and the cases with
`jquant/operators`.
"""

import importlib
import re
import sys
from types import ModuleType

import pytest
from support.documents import generated_pages

import jquant

PUBLIC = {  # but for the operators, which the sections of operators.md name
    "jquant": """
        DescriptorError DescriptorTypeError DynamicQuantizeOutput Error FeatureLevel Implementation MxQuantizeOutput
        Nvfp4QuantizeOutput PackedBlockMatrix PackedMatrix QuantizeMode QuantizeOutput RangeOutput RoundMode
        ScaleBias ScaleGranularity ScaleZeroPoint __version__ calibration checkpoints exact feature_level host kv_cache onnx
        transform
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
    "jquant.host": """
        HostError disabled_checks export native_calls portable_module write
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
        SiteReport Sites TransformError TransformTypeError adapters calibrate dynamic_int8 dynamic_int8_rows gptq_int4
        int4_by_rows load mixed_precision quantization_aware quantize report save shardings sites static_int8
        weight_only_float8 weight_only_int4 weight_only_int8 weight_only_mxfp4 weight_only_nvfp4
    """,
    "jquant.transform.adapters": """
        attach init merge
    """,
}
PAGES = {path: name for name, (path, _) in generated_pages.MODULES.items()}  # the name of the page of each module


def public(package: str) -> list[str]:
    operators = (name for _, texts in generated_pages.sections() for name in texts) if package == "jquant" else ()
    return sorted([*PUBLIC[package].split(), *operators])


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
    names = public(package)
    module = importlib.import_module(package)
    assert dir(module) == names
    star: dict = {}
    exec(f"from {package} import *", star)
    lazy = {"__version__", "checkpoints", "host", "onnx"} if package == "jquant" else set()
    assert star.keys() - {"__builtins__"} == {*module.__all__} == {*names} - lazy
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PUBLIC)
def test_documented(package):
    """Each function and class has a docstring, which a generated page shows; each module has such a page."""
    pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
    values = {name: getattr(importlib.import_module(package), name) for name in public(package)}
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
    assert set(public("jquant")) - set(dir(jquant)) == {"onnx"}
