"""Times one kernel, a tiled matrix product, under the emulator and under programs of others, and writes a record.

FILE is an interpreter of an environment with numpy, numba and vgre, FOLDER a checkout of github.com/ROCm/HIP-CPU. All
run linear of mnist_cuda/peers/numba_ops.py: Numba's simulator as it stands there, the others in CUDA, which HIP-CPU
takes under HIP's names. Each result is compared with float64.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks.runner import ROOT

SHAPES = [(2, 64, 16), (4, 256, 32), (16, 256, 64)]  # batch, in, out
RUNS = 5

KERNEL = """#include <cuda_runtime.h>
extern "C" __global__ void linear_kernel(float* y, const float* x, const float* w, const float* bias, int batch, int in,
                                         int out) {
  __shared__ float of_x[16][16];
  __shared__ float of_w[16][17];
  int column = threadIdx.x, row = threadIdx.y;
  int b = blockIdx.y * 16 + row, o = blockIdx.x * 16 + column, mine = blockIdx.x * 16 + row;
  float total = 0.0f;
  for (int begin = 0; begin < in; begin += 16) {
    int k = begin + column;
    of_x[row][column] = (b < batch && k < in) ? x[b * in + k] : 0.0f;
    of_w[row][column] = (mine < out && k < in) ? w[mine * in + k] : 0.0f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) total += of_x[row][i] * of_w[column][i];
    __syncthreads();
  }
  if (b < batch && o < out) y[b * out + o] = total + bias[o];
}
"""
HOST = r"""
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>
int main(int, char** a) {
  const int batch = std::atoi(a[1]), in = std::atoi(a[2]), out = std::atoi(a[3]), runs = std::atoi(a[4]);
  set_orders(std::atoi(a[5]));
  const auto made = [](std::size_t count) {
    std::vector<float> values(count);
    if (std::fread(values.data(), 4, count, stdin) != count) std::exit(3);
    float* data;
    cudaMalloc((void**)&data, 4 * count);
    cudaMemcpy(data, values.data(), 4 * count, cudaMemcpyHostToDevice);
    return data;
  };
  const float *x = made(batch * in), *w = made(out * in), *bias = made(out);
  float* y;
  cudaMalloc((void**)&y, 4 * batch * out);
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    const dim3 grid((out + 15) / 16, (batch + 15) / 16), block(16, 16);
    LAUNCH
    cudaDeviceSynchronize();
    std::fprintf(stderr, "%.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::vector<float> values(batch * out);
  cudaMemcpy(values.data(), y, 4 * values.size(), cudaMemcpyDeviceToHost);
  std::fwrite(values.data(), 4, values.size(), stdout);
  return any_fault();
}
"""
EMULATOR = '#include "emulator.h"\nusing namespace emulator;\n'
HIP = "static void set_orders(int) {}\nstatic bool any_fault() { return false; }\n"
# In the other environment: prints a JSON object of seconds, errors and versions.
OTHERS = r"""
import json, os, sys, time
import numpy as np
which, shape, runs, kernel = sys.argv[1], [int(n) for n in sys.argv[2].split(",")], int(sys.argv[3]), sys.argv[4]
batch, inside, out = shape
rng = np.random.default_rng(1)
x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((batch, inside), (out, inside), (out,)))
y = np.full((batch, out), np.nan, np.float32)
grid = (-(-out // 16), -(-batch // 16))
want = x.astype(float) @ w.T.astype(float) + bias
if which == "numba":
    import numba, numba_ops
    version = numba.__version__
    run = lambda: numba_ops.linear_kernel[grid, (16, 16)](y, x, w, bias)
elif which == "vgre":
    import importlib.metadata
    import vgre
    from vgre.runtime import Dim3
    version = importlib.metadata.version("vgre")
    runtime, made = vgre.Runtime(), vgre.Kernel("linear_kernel", kernel)
    runtime.init()
    def run():
        runtime.launch(made, Dim3(*grid, 1), Dim3(16, 16, 1), [y, x, w, bias, batch, inside, out], 0, False)
        runtime.synchronize()
else:
    import subprocess
    version = ""
    done = subprocess.run([kernel, *map(str, shape), str(runs), which.split()[1]], capture_output=True, check=True,
                          input=b"".join(a.tobytes() for a in (x, w, bias)))
    y = np.frombuffer(done.stdout, np.float32).reshape(batch, out)
    seconds = [float(line) for line in done.stderr.split()]
if which in ("numba", "vgre"):
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
error = float(np.linalg.norm(y - want) / np.linalg.norm(want))
print("\n" + json.dumps({"seconds": seconds, "error": error, "version": version}))
"""


def call(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def build(folder: Path) -> Path:
    """The kernel with the emulator, as one program."""
    emulator = ROOT / "native" / "emulator"
    launch = "linear_kernel<<<grid, block>>>(y, x, w, bias, batch, in, out);"
    (folder / "linear.cu").write_text(KERNEL + EMULATOR + HOST.replace("LAUNCH", launch))
    call(sys.executable, emulator / "rewrite.py", folder, folder, folder / "linear.cu")
    flags = [line for line in (emulator / "flags.txt").read_text().splitlines() if line.startswith("-")]
    common = ["g++", "-std=c++20", f"-I{emulator / 'include'}", f"-I{emulator}", "-c"]
    objects = []
    for source in ("barriers", "machine", "memory", "ptx", "report", "runtime"):
        objects.append(folder / f"{source}.o")
        run(*common, "-O3", emulator / f"{source}.cpp", "-o", objects[-1])
    call(*common, *flags, folder / "linear.cu.cpp", "-o", folder / "linear.o")
    call("g++", *objects, folder / "linear.o", "-o", folder / "linear")
    return folder / "linear"


def build_hip(folder: Path, hip: Path) -> Path:
    """The same with HIP-CPU, which takes no <<<>>>; without TBB, so on one core."""
    launch = "hipLaunchKernelGGL(linear_kernel, grid, block, 0, nullptr, y, x, w, bias, batch, in, out);"
    text = KERNEL.replace('extern "C" ', "") + HIP + HOST.replace("LAUNCH", launch)
    for cuda, its in (("cuda_runtime.h", "hip/hip_runtime.h"), ("cudaM", "hipM"), ("cudaD", "hipD")):
        text = text.replace(cuda, its)
    (folder / "hip.cpp").write_text(text)
    call("g++", "-std=c++17", "-O2", f"-I{hip / 'include'}", folder / "hip.cpp", "-o", folder / "hip")
    return folder / "hip"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--python", required=True, metavar="FILE", help="interpreter with numpy, numba and vgre")
    parser.add_argument("--hip-cpu", type=Path, required=True, metavar="FOLDER", help="checkout of HIP-CPU")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--busy", action="store_true", help="on a machine that others use, too")


def run(args: argparse.Namespace) -> int:
    """Time them and write the record."""
    from mnist_cuda.bench.record import Record

    record = Record(args.json, busy=args.busy)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        programs = {"emulator": build(Path(name)), "hip-cpu": build_hip(Path(name), args.hip_cpu)}
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT / "mnist_cuda" / "peers")}
        for shape in SHAPES:
            for which in ("emulator 1", "emulator 3", "hip-cpu 1", "numba", "vgre"):
                runs = 1 if which == "numba" and shape == SHAPES[-1] else RUNS
                command = [args.python, "-c", OTHERS, which, ",".join(map(str, shape)), str(runs)]
                program = programs.get(which.split()[0])
                command += [str(program) if program else KERNEL.partition("\n")[2]]
                done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
                result = json.loads(done.stdout.splitlines()[-1])
                assert result["error"] < 1e-5, (which, shape, result["error"])
                rows.append({"program": which, "batch": shape[0], "in": shape[1], "out": shape[2], **result})
                median = sorted(result["seconds"])[runs // 2]
                print(f"{which}, {shape}: median of {runs}: {median:.4f} s, error {result['error']:.1e}", flush=True)
    record.write({"kernel": KERNEL, "rows": rows})
    return 0
