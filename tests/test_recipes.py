"""The recipes run, and `docs/recipes.md` quotes them literally."""

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

import jquant

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "flax_nnx": ["flax"],
    "flax_dot_general": ["flax"],
    "equinox_model": ["equinox"],
    "dlpack_torch": ["torch"],
    "safetensors_model": ["safetensors"],
    "orbax_checkpoint": ["orbax.checkpoint"],
    "transform_nnx": ["flax"],
    "transform_keras": ["keras"],
    "llama": ["safetensors"],
    "flax_to_onnxruntime": ["flax", "onnx", "onnxruntime"],
    "transform_linen": ["flax"],
    "transform_equinox": ["equinox"],
    "transform_haiku": ["haiku"],
    "transform_cond": [],
    "checkpoint_in_flax": ["flax", "safetensors"],
    "transform_saved": ["orbax.checkpoint", "safetensors"],
    "key_value_cache": ["flax"],
    "adapters": ["flax", "equinox", "optax", "orbax.checkpoint", "safetensors"],
}
MARKS = {"dlpack_torch": (), "transform_keras": pytest.mark.full}  # Keras takes long to begin
EXTRAS = {"torch": "no extra: it is large", "onnx": "extra: onnx", "onnxruntime": "extra: oracle"}  # others: recipes
DOCUMENT = (ROOT / "docs" / "recipes.md").read_text()
SECTIONS = {
    match[1]: text for text in DOCUMENT.split("\n## ") if (match := re.search(r"`examples/recipes/(\w+)\.py`", text))
}


def require(name: str) -> None:
    for package in PACKAGES[name]:
        pytest.importorskip(package, reason=f"{package} is not installed ({EXTRAS.get(package, 'extra: recipes')})")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL)


def test_every_recipe_is_in_the_document():
    assert {path.stem for path in (ROOT / "examples" / "recipes").glob("*.py")} == set(SECTIONS) == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_document_shows_the_program(name):
    """The program contains each block of the page, up to its indentation."""
    program = (ROOT / "examples" / "recipes" / f"{name}.py").read_text()
    quotations = blocks(name, "python")
    assert quotations
    for block in quotations:
        assert any(textwrap.indent(block, margin) in program for margin in ("", " " * 4, " " * 8)), block


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, pytest.mark.gate)) for name in PACKAGES],
)
def test_runs(name):
    """The program's own checks pass, and it prints what the page says."""
    require(name)
    program = ROOT / "examples" / "recipes" / f"{name}.py"
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert blocks(name, "text") == [result.stdout]


def test_checkpoint_of_another_structure(tmp_path):
    """A wrong dtype, and a missing or additional zero point, some of which Orbax itself accepts."""
    require("orbax_checkpoint")
    specification = importlib.util.spec_from_file_location("recipe", ROOT / "examples" / "recipes" / "orbax_checkpoint.py")
    recipe = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(recipe)
    weight, zero_point = np.full((64, 4), 200, np.uint8), np.full(4, 100, np.uint8)
    variants = {
        "uint8": (weight, None),
        "uint8 and a zero point": (weight, zero_point),
        "int8": (weight.view(np.int8), None),
        "int8 and a zero point": (weight.view(np.int8), zero_point.view(np.int8)),
    }
    for saved, arguments in variants.items():
        if saved.startswith("uint8"):
            recipe.save(tmp_path / saved, {"layer": jquant.pack_matrix(*arguments)})
            for requested, target_arguments in variants.items():
                target = {"layer": jax.eval_shape(jquant.pack_matrix, *target_arguments)}
                if requested != saved:
                    with pytest.raises(ValueError, match=r"the checkpoint has PyTreeDef.*uint8.*, not PyTreeDef"):
                        recipe.restore(tmp_path / saved, target)
                    continue
                restored = recipe.restore(tmp_path / saved, target)["layer"]
                np.testing.assert_array_equal(restored.unpack(), weight)
