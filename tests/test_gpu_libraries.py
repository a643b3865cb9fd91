"""Where cuDNN and cuBLAS are found: ours, or PyTorch's, whose cuBLAS for CUDA 13 lies in another folder."""

import shutil
import subprocess
import sys

import pytest

# In a process of its own, because what is found is loaded.
FIND = """
import site, sys
site.getsitepackages = lambda: [sys.argv[1]]
site.ENABLE_USER_SITE = False
from types import SimpleNamespace
from mnist_cuda.engine import gpu_libraries
gpu_libraries._native = SimpleNamespace(
    cuda_status=lambda: {"device_count": int(sys.argv[2])}, set_library_path=lambda name, path: print(name, path)
)
gpu_libraries.find_libraries(("cublasLt", "cudnn"))
"""
LAYOUTS = {
    "ours, for CUDA 12": ("nvidia/cublas/lib/libcublasLt.so.12", "nvidia/cudnn/lib/libcudnn.so.9"),
    "PyTorch's, for CUDA 13": ("nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cudnn/lib/libcudnn.so.9"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wheels_of_either_cuda_are_found(tmp_path, layout):
    pytest.importorskip("cuda.pathfinder", reason="an installation for the CPU alone has no cuda-pathfinder")
    compiler = shutil.which("g++") or pytest.skip("no g++")
    for file in LAYOUTS[layout]:
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        command = [compiler, "-shared", f"-Wl,-soname,{path.name}", "-x", "c++", "/dev/null", "-o", path]
        subprocess.run(command, check=True)

    def find(devices):
        command = [sys.executable, "-c", FIND, str(tmp_path), str(devices)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    cublas, cudnn = LAYOUTS[layout]
    assert find(1) == [f"cublasLt {tmp_path / cublas}", f"cudnn {tmp_path / cudnn}"]
    assert find(0) == []
