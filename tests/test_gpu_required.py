"""MNIST_CUDA_REQUIRE_GPU=1: a GPU test that is skipped is a failure, unless the GPU is too old or a single one."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.gpu
def test_library(): pytest.skip("libnothing.so is not installed")

@pytest.fixture
def data(): pytest.skip("the real MNIST is not here")

@pytest.mark.gpu
def test_data(data): pass

@pytest.mark.gpu
def test_older(): pytest.skip("it needs compute capability 8.0 and GPU 0 has 7.5")

@pytest.mark.gpu
def test_pair(): pytest.skip("this is a test for several GPUs, expected 2, found 1")

@pytest.mark.gpu
def test_passes(): pass

def test_of_the_host(): pytest.skip("no compiler")
"""


def test_what_is_skipped(tmp_path):
    (tmp_path / "test_made_up.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from suite.conftest import pytest_runtest_makereport\n")
    (tmp_path / "suite").symlink_to(Path(__file__).parent)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: as in the suite\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", "test_made_up.py"],
        cwd=tmp_path,
        env={**os.environ, "MNIST_CUDA_REQUIRE_GPU": "1", "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent}"},
        capture_output=True,
        text=True,
    )
    assert " 1 failed, 1 passed, 3 skipped, 1 error in " in run.stdout, run.stdout
    assert "MNIST_CUDA_REQUIRE_GPU=1, and this was not tested: " in run.stdout
    assert "libnothing.so is not installed" in run.stdout
