"""``--no-skips``, which turns skipped tests into failures, so that the gate makes every comparison."""

import pathlib

import pytest

pytest_plugins = "pytester"

SKIPS = {
    "module": "import pytest\npytest.importorskip('no_such_package')",
    "test": "import pytest\ndef test(): pytest.skip('a reason')",
    "mark": "import pytest\n@pytest.mark.skip\ndef test(): pass",
}

SKIP_OF_THE_PROCESSOR = """
import numpy as np
from jquant.onnx import onnxruntime_session
from support.saturation import need_exact_products
onnxruntime_session.saturates = lambda: True
def test_one_type(): need_exact_products(np.int8, np.zeros(1, np.int8))
def test_two_types(): need_exact_products(np.uint8, np.zeros(1, np.int8))
"""


@pytest.mark.gate
@pytest.mark.parametrize("processes", ["0", pytest.param("1", marks=pytest.mark.full)])
def test_each_skip_fails(pytester, processes):
    tests = pathlib.Path(__file__).parent
    pytester.makeconftest((tests / "conftest.py").read_text())
    texts = {"that_passes": "def test(): pass", **SKIPS, "of_the_processor": SKIP_OF_THE_PROCESSOR}
    pytester.makepyfile(**{f"test_{name}": text for name, text in texts.items()})
    arguments = "-n", processes, "-o", f"pythonpath={tests}"
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=2, skipped=len(SKIPS) + 1)
    result = pytester.runpytest_subprocess(*arguments, "--no-skips", "--continue-on-collection-errors")
    # Errors: the module, while it is collected, and the mark, before its test.
    result.assert_outcomes(passed=2, skipped=1, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*not compared*", "1 skipped: onnxruntime's products*; jquant's are exact"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
