"""mnist_cuda.torch: torch_operators.py in a process that has PyTorch, and the sentence where there is none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, peer_python

from mnist_cuda import _native


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_operators(device, make_engine, run_with_torch):
    if device == "cuda":
        make_engine("naive")  # skips where our kernels cannot run
    run_with_torch("torch_operators.py", device)


def test_beside_pytorch_and_numpy_alone(tmp_path, torch_folders):
    """In the peers' environment, which has nothing that the rest of the package asks for."""
    if not torch_folders:
        pytest.skip("PyTorch is in this environment, with all that the package asks for")
    package = tmp_path / "mnist_cuda"
    package.mkdir()
    for file in {*(ROOT / "mnist_cuda").iterdir(), Path(_native.__file__)}:
        (package / file.name).symlink_to(file)
    code = "import torch; from mnist_cuda.torch import linear; print(linear(*[torch.ones(1, 1)] * 2, torch.ones(1)))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    result = subprocess.run([peer_python(), "-c", code], env=environment, capture_output=True, text=True)
    assert result.stdout == "tensor([[2.]])\n", result.stderr


def test_without_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import mnist_cuda.torch"
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert result.returncode == 1
    expected = "mnist_cuda.torch needs PyTorch, which cannot be imported (not here): `pip install torch`, then "
    assert f"UnavailableError: {expected}" in result.stderr


def test_the_page_shows_the_code():
    files = ("mnist_cuda/torch.py", "native/include/mnist/operators.h")
    code = "".join((ROOT / file).read_text() for file in files)
    blocks = re.findall(r"```(?:python|cpp)\n(.*?)```", (ROOT / "docs/operators.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert block in code, block
