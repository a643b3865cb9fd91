"""mnist-cuda doctor: the facts, a sentence with a remedy for each problem, and exit code 4 for a GPU that lies idle."""

import json

import pytest
from tiny import said, shell_program

from mnist_cuda import _native, doctor, machine, memory
from mnist_cuda.engine import engines
from mnist_cuda.engine.gpu_libraries import OP_LIBRARIES, find_libraries

GPU = {"name": "a GPU", "compute_capability": "9.0", "memory_bytes": 80 << 30}
STATUS = {
    "compiled": True, "device_count": 1, "driver_version": 13000, "runtime_version": 13000, "architectures": "90a-real",
    "reason": "",
}  # fmt: skip
SMI = "NVIDIA H200, 580.65.06, 9.0, 143771"


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """A machine without a GPU, a tool on the PATH or a data set; returns the folder on the PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "cache"))
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "pci_gpus", lambda: [])
    monkeypatch.setattr(doctor, "locate", lambda name: None)
    pretend(monkeypatch, {**STATUS, "compiled": False, "device_count": 0, "driver_version": 0, "reason": "no CUDA"}, [])
    yield tools
    find_libraries.cache_clear()  # it may have asked the status above


def pretend(monkeypatch, status, gpus, why="", reasons=None):
    """What the native code says: its status, the GPUs, and why CUDA engines cannot run: all, or those of `reasons`."""
    monkeypatch.setattr(_native, "cuda_status", lambda: status)
    monkeypatch.setattr(_native, "gpus", lambda: gpus)

    def unavailable(name, _):
        row = next(row for row in _native.engines() if row["name"] == name)
        reason = (why or status["reason"]) if reasons is None else reasons.get(name)
        return dict.fromkeys(row["precisions"], reason) if reason and row["device"] == "cuda" else {}

    monkeypatch.setattr(_native, "unavailable", unavailable)


def diagnose(capsys):
    """Exit code, what is printed, and the object of --json."""
    code, text, _ = said(capsys, "doctor")
    again, printed, _ = said(capsys, "doctor", "--json")
    facts = json.loads(printed)
    assert again == code
    for problem in facts["problems"]:
        assert f"PROBLEM  {problem}\n" in text
    assert ("no problem found" in text) != bool(facts["problems"])
    return code, text, facts


def test_without_a_gpu_nothing_is_wrong(capsys):
    code, text, facts = diagnose(capsys)
    assert (code, facts["problems"]) == (0, [])
    lines = text.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[:6]] == [
        "mnist-cuda", "build", "python", "system", "processor", "memory",
    ]  # fmt: skip
    assert "GPU         none" in lines
    assert "driver      none" in lines
    assert "no CUDA" in text
    assert [row["name"] for row in facts["engines"]] == [row.name for row in engines()]
    assert facts["auto"] == "cpu"
    assert facts["memory"]["available"] == pytest.approx(memory.available(), rel=0.2)
    assert all(free > 0 for free in facts["disk"].values())
    assert facts["versions"] == machine.versions()


def test_a_gpu_that_works(bare, monkeypatch, capsys):
    shell_program(bare / "nvidia-smi", f"echo '{SMI}'")
    shell_program(bare / "nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    pretend(monkeypatch, STATUS, [GPU])
    monkeypatch.setattr(doctor, "locate", lambda name: f"/lib/lib{name}.so")
    code, text, facts = diagnose(capsys)
    assert (code, facts["problems"]) == (0, [])
    assert "0: a GPU, compute capability 9.0, 85.9 GB" in text
    assert "580.65.06, for CUDA 13.0" in text
    assert "for 90a-real, by CUDA 13.0" in text
    assert f"nvcc 12.4, {bare}/nvcc" in text
    assert facts["toolkits"][0] == {"path": f"{bare}/nvcc", "version": "12.4"}
    assert [row["path"] for row in facts["libraries"]] == [f"/lib/lib{name}.so" for name in OP_LIBRARIES]


@pytest.mark.parametrize(
    ("smi", "status", "gpus", "pci", "why", "problem"),
    [
        (
            f"echo '{SMI}'",
            {"compiled": False, "driver_version": 0, "device_count": 0, "reason": "this build has no CUDA code; build"},
            [], [], "",
            "NVIDIA H200 is here, and this build has no CUDA code; build",
        ),
        (
            None,
            {"driver_version": 0, "device_count": 0, "reason": "no NVIDIA driver on this machine"},
            [], ["0000:01:00.0"], "",
            "an NVIDIA GPU at 0000:01:00.0 is here, and no NVIDIA driver on this machine: install driver 580 or newer, "
            "or start the container with the GPU (docker: --gpus all)",
        ),
        (
            f"echo '{SMI}'",
            {"driver_version": 12020, "device_count": 0, "reason": "the driver is for CUDA 12.2; update the driver"},
            [], [], "",
            "NVIDIA H200 is here, and the driver is for CUDA 12.2; update the driver",
        ),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            {"device_count": 0, "reason": "x"},
            [], ["0000:01:00.0"], "",
            "nvidia-smi fails, 'Failed to initialize NVML: Driver/library version mismatch': the driver was updated "
            "while the old one runs: restart the machine",
        ),
        (
            f"echo '{SMI}'", {}, [GPU], [], "this build is for 90a-real; build with 70",
            "this build is for 90a-real; build with 70",
        ),
    ],
    ids=["no CUDA code", "no driver", "old driver", "mismatch", "other architecture"],
)  # fmt: skip
def test_a_gpu_that_cannot_be_used_is_exit_code_4(bare, monkeypatch, capsys, smi, status, gpus, pci, why, problem):
    if smi:
        shell_program(bare / "nvidia-smi", smi)
    monkeypatch.setattr(doctor, "pci_gpus", lambda: pci)
    pretend(monkeypatch, STATUS | status, gpus, why)
    code, _, facts = diagnose(capsys)
    assert code == 4
    assert problem in facts["problems"]


def test_one_engine_for_a_newer_gpu_is_no_problem_and_a_missing_library_is(monkeypatch, capsys):
    reasons = {"fused": "it needs compute capability 8.0 and GPU 0 has 7.5"}
    pretend(monkeypatch, STATUS, [GPU], reasons=reasons)
    code, text, facts = diagnose(capsys)
    assert (code, facts["problems"], facts["auto"]) == (0, [], "layerwise")
    assert "cannot run" not in text  # `mnist-cuda engines` says why
    reasons["cudnn"] = "cudnn cannot be loaded (x); install it with `pip install nvidia-cudnn-cu12`"
    code, _, facts = diagnose(capsys)
    assert (code, facts["problems"], facts["auto"]) == (0, [reasons["cudnn"]], "layerwise")


def test_little_disk_memory_and_no_cache(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(memory, "available", lambda: 300_000_000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 5_000_000}))
    code, _, facts = diagnose(capsys)
    assert code == 0
    found = "\n".join(facts["problems"])
    assert f"{tmp_path}/file: cannot write here, where mnist is kept: name another folder by MNIST_CUDA_CACHE" in found
    assert "5 MB of disk are free" in found
    assert "300 MB of memory are free" in found


def test_nvidia_smi_that_answers_something_else(bare):
    for text, words in {"echo 7.5": "7.5", f"echo '{SMI}'; exit 3": SMI, "exit 3": "exit code 3"}.items():
        shell_program(bare / "nvidia-smi", text)
        assert doctor.ask_nvidia_smi() == ([], f"nvidia-smi fails, '{words}': install the NVIDIA driver again")


def test_cards_on_the_pci_bus(tmp_path):
    def card(address, vendor, kind):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    card("0000:02:00.0", "0x10de", "0x030200")
    card("0000:01:00.0", "0x10de", "0x030000")
    card("0000:01:00.1", "0x10de", "0x040300")  # the sound of it
    card("0000:00:02.0", "0x8086", "0x030000")
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0").mkdir()
    assert PCI_GPUS(tmp_path) == ["0000:01:00.0", "0000:02:00.0"]


PCI_GPUS = doctor.pci_gpus


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 13.3.0",
            "580.65.06"),
        ("something else", None),
        (None, None),
    ],
)  # fmt: skip
def test_the_drivers_version_is_the_kernels(tmp_path, text, version):
    if text is not None:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert machine.driver(tmp_path) == version


def test_what_the_native_code_says_of_gpus():
    assert len(NATIVE_GPUS()) == NATIVE_STATUS()["device_count"]
    for gpu in NATIVE_GPUS():
        assert gpu.keys() == GPU.keys()
        assert float(gpu["compute_capability"]) >= 5
        assert gpu["memory_bytes"] > 1 << 30


NATIVE_GPUS, NATIVE_STATUS = _native.gpus, _native.cuda_status
