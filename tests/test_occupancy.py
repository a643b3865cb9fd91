"""Registers and occupancy by nvcc: numbers worked out by hand, NVIDIA's own header, and what ptxas prints."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, needs_compiler

from mnist_cuda.bench import emulate, machine_code, occupancy
from mnist_cuda.errors import UnavailableError
from mnist_cuda.judge import judging

try:
    NVCC = machine_code.find_tool("nvcc")
except UnavailableError:
    NVCC = ""
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc here")

# By hand: GPU, threads of a block, registers of a thread, bytes of shared memory; blocks, occupancy, limits.
BY_HAND = [
    # linear, tiled. A warp takes 32 x 32 = 1024 registers, a quarter of the multiprocessor has 16,384: 64 warps, which
    # are 2 blocks of 32, and as many as there may be. Shared memory, 8448 + 1024 bytes a block, would do for 17.
    ("a100", 1024, 32, 8448, 2, 64 / 64, ["registers", "warps"]),
    # 46 x 32 = 1472, rounded up to 1536: 10 warps a quarter, 40 in all, 1 block. There may be 32 warps.
    ("t4", 1024, 46, 8448, 1, 32 / 32, ["registers", "warps"]),
    # 96 x 32 = 3072: 5 warps a quarter, 20 in all, which are 2 blocks of 7: the 1024 registers that a quarter has left,
    # four times, make no 21st warp.
    ("t4", 224, 96, 0, 2, 14 / 32, ["registers"]),
    # 48 KiB and the system's 1 KiB are 50,176 bytes: 2 in 100 KiB.
    ("rtx4090", 128, 32, 49152, 2, 8 / 48, ["shared memory"]),
    # 23 KiB would be 7 times in 164 KiB, but with the system's 1 KiB they are 6 times.
    ("a100", 128, 32, 23552, 6, 24 / 64, ["shared memory"]),
    # 21,760 bytes are 85 x 256: 3 in 64 KiB. One byte more takes 22,016: 2.
    ("t4", 64, 16, 21760, 3, 6 / 32, ["shared memory"]),
    ("t4", 64, 16, 21761, 2, 4 / 32, ["shared memory"]),
    # A warp a block, and next to nothing else: 24 blocks.
    ("rtx4090", 20, 16, 0, 24, 24 / 48, ["the number of blocks"]),
    # 72 x 32 = 2304: 7 warps a quarter, 28 in all, which are fewer than a block of 32.
    ("a100", 1024, 72, 0, 0, 0, ["registers"]),
]


def launched(name, threads=256, dynamic_bytes=0, functions=()):
    return {"name": name, "block": threads, "dynamic_bytes": dynamic_bytes, "functions": list(functions)}


@pytest.mark.parametrize(("gpu", "threads", "registers", "shared", "blocks", "share", "limits"), BY_HAND)
def test_by_hand(gpu, threads, registers, shared, blocks, share, limits):
    on = occupancy.MULTIPROCESSORS[gpu]
    assert occupancy.active_blocks(on, threads, registers, shared) == (blocks, limits)
    kernel = occupancy.Compiled("k", registers, 0, shared // 2)
    (use,) = occupancy.uses([kernel], [launched("k", threads, shared - shared // 2)], gpu)
    assert (use.shared_bytes, use.blocks_per_multiprocessor, use.occupancy) == (shared, blocks, pytest.approx(share))


BY_NVIDIA = """
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, warps, shared, reserved, threads, registers, bytes;
  while (std::scanf("%d %d %d %d %d %d %d %d", &major, &minor, &warps, &shared, &reserved, &threads, &registers,
                    &bytes) == 8) {
    cudaOccDeviceProp device;
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = 32 * warps;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 << 10;
    device.sharedMemPerMultiprocessor = shared;
    device.numSms = 100;
    device.sharedMemPerBlockOptin = shared - reserved;
    device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = INT_MAX;
    function.numRegs = registers;
    function.sharedSizeBytes = 0;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = bytes;
    const cudaOccDeviceState state;
    cudaOccResult found;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &function, &state, threads, bytes)) return 1;
    std::printf("%d %u\\n", found.activeBlocksPerMultiprocessor, found.limitingFactors);
  }
}
"""
BITS = {"warps": 1, "registers": 2, "shared memory": 4, "the number of blocks": 8}  # of the header


@needs_nvcc
def test_as_nvidias_header_has_it(tmp_path):
    (tmp_path / "by.cpp").write_text(BY_NVIDIA)
    subprocess.run([NVCC, "--cudart=none", "-o", tmp_path / "by", tmp_path / "by.cpp"], check=True)
    pick = random.Random(1)
    given, ours = [], []
    for on in occupancy.MULTIPROCESSORS.values():
        number = on.architecture[3:5]
        for _ in range(5000):
            threads, registers = pick.randint(1, 1024), pick.randint(1, 255)
            shared = pick.choice([0, pick.randint(0, 2000), pick.randint(0, on.shared - on.reserved)])
            given.append(f"{number[0]} {number[1]} {on.warps} {on.shared} {on.reserved} {threads} {registers} {shared}")
            blocks, limits = occupancy.active_blocks(on, threads, registers, shared)
            ours.append(f"{blocks} {sum(BITS[name] for name in limits)}")
    done = subprocess.run([tmp_path / "by"], input="\n".join(given), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ours


PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN4mine4tileILi4ELb1EEEvPf' for 'sm_75'
ptxas info    : Function properties for _ZN4mine6helperEv
    64 bytes stack frame, 32 bytes spill stores, 32 bytes spill loads
ptxas info    : Function properties for _ZN4mine4tileILi4ELb1EEEvPf
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 51 registers, used 1 barriers, 8448 bytes smem, 408 bytes cmem[0]
ptxas info    : Compiling entry function 'plain' for 'sm_75'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 388 bytes cmem[0]
"""


@needs_compiler
def test_the_words_of_ptxas():
    assert occupancy.told(PTXAS) == [
        occupancy.Compiled("tile<4,true>", 51, 12, 8448),
        occupancy.Compiled("plain", 10, 0, 0),
    ]


def test_the_instances_that_ran():
    kernels = [occupancy.Compiled(name, 32, 0, 0) for name in ("tile<4,true>", "tile<8,true>", "other")]

    def names(*functions):
        return [use.name for use in occupancy.uses(kernels, [launched("mine::tile<n,b>", functions=functions)], "t4")]

    assert names("mine::(anonymous namespace)::tile<8, true>(float*)") == ["tile<8,true>"]
    assert names() == ["tile<4,true>", "tile<8,true>"]
    assert occupancy.uses(kernels, [launched("absent")], "t4") == []


def test_every_gpu_of_the_emulator_is_there():
    assert occupancy.MULTIPROCESSORS.keys() == emulate.GPUS.keys()


# kernel<3> alone is launched, with 20,480 bytes: 480 of its own and 20,000 of the launch's.
FILE = """
#include <cuda_runtime.h>
#include <cstdint>
template <int kNumber>
__global__ void kernel(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  __shared__ float own[kNumber * 40];
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (threadIdx.x < 40 * kNumber) own[threadIdx.x] = 0;
  __syncthreads();
  if (k < count) pass[k] = !(x[k] <= 0), y[k] = pass[k] ? x[k] : own[threadIdx.x % (40 * kNumber)];
}
template __global__ void kernel<5>(float*, std::uint8_t*, const float*, std::int64_t);
void relu_forward(float* y, std::uint8_t* pass, const float* x, std::int64_t count, cudaStream_t stream) {
  constexpr int kMine = 3;
  kernel<kMine><<<unsigned((count + 255) / 256), 256, 20000, stream>>>(y, pass, x, count);
}
"""


@pytest.fixture
def file(tmp_path, emulator):
    path = tmp_path / "one.cu"
    path.write_text(FILE)
    return path


@needs_compiler
@needs_nvcc
def test_a_judged_file(file):
    found = judging.judge_file(file, "a100")
    assert found["exit_code"] == 0, found["lines"]
    resources = found["verdicts"][0]["resources"]
    assert (resources["gpu"], resources["unknown"]) == ("a100", "")
    (use,) = resources["kernels"]
    assert 0 < use.pop("registers") <= 32
    assert use == {
        "name": "kernel<3>",
        "threads": 256,
        "spilled_bytes": 0,
        "shared_bytes": 20480,  # with the system's 1 KiB 21,504, 7 times in 164 KiB
        "blocks_per_multiprocessor": 7,
        "occupancy": 56 / 64,
        "limited_by": ["shared memory"],
    }
    words = " ".join(" ".join(found["lines"]).split())
    assert "and by nvcc for the GPU a100 kernel<3>: " in words
    assert "occupancy 88 %, limited by shared memory" in words


@needs_compiler
def test_no_nvcc(file, monkeypatch):
    def nowhere(name):
        raise UnavailableError(f"there is no {name}")

    monkeypatch.setattr(occupancy, "find_tool", nowhere)
    found = judging.judge_file(file, "t4")
    assert found["exit_code"] == 0
    assert found["verdicts"][0]["resources"] == {"gpu": "", "unknown": "there is no nvcc", "kernels": []}
    said = "registers and occupancy were not looked at"
    assert f"{said}: there is no nvcc" in " ".join(" ".join(found["lines"]).split())
    monkeypatch.setattr(occupancy, "compiled", None)  # nobody asks nvcc
    assert f"{said} numbers" in " ".join(" ".join(judging.judge_file(file)["lines"]).split())


@needs_compiler
@needs_nvcc
def test_a_row_of_the_ladder(emulator):
    flags = ("--op", "relu", "--variant", "float4", "--as", "t4")
    command = [sys.executable, "-m", "mnist_cuda", "bench", "ops", "--emulate", *flags]
    printed, data = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--json"])
    )
    (use,) = json.loads(data)["rows"][0]["resources"]["kernels"]
    # No shared memory, and far fewer than 64 registers: 4 blocks of 8 warps are all that a T4 has.
    assert (use["threads"], use["shared_bytes"], use["blocks_per_multiprocessor"]) == (256, 0, 4)
    assert (use["occupancy"], use["limited_by"]) == (1.0, ["warps"])
    assert re.search(rf"^{use['name']} +256 +{use['registers']} +0 +0 +4 +100 % +warps$", printed, re.MULTILINE)


@needs_nvcc
def test_what_nvcc_refuses(tmp_path: Path):
    path = tmp_path / "one.cu"
    path.write_text("#ifdef __CUDACC__\n#error not by nvcc\n#endif\n")
    with pytest.raises(UnavailableError, match=r"nvcc does not compile the file: .*not by nvcc"):
        occupancy.compiled(path, occupancy.MULTIPROCESSORS["t4"], ROOT / "native")
