"""`bench ops --sass` and `--ptx`: which code is taken from what cuobjdump lists; what is said where there is none."""

import re

import pytest
from tiny import prints

from mnist_cuda import _native, cli
from mnist_cuda.bench import machine_code
from mnist_cuda.errors import UnavailableError

USAGE = """
Fatbin elf code:
================
arch = sm_80
identifier = ../native/gpu/kernels/relu/float4.cu

Resource usage:
 Function _Zfloat4_kernelEPf:
  REG:28 STACK:0 SHARED:0 LOCAL:0
Fatbin elf code:
arch = sm_90a
identifier = ../native/gpu/kernels/linear/naive.cu

 Function _Zx_kernelIdEvPT_:
  REG:28
 Function _Zx_kernelIfEvPT_:
  REG:28
Fatbin elf code:
arch = sm_90a
identifier = ../native/gpu/kernels/peers/cutlass.cu

 Function _Zcutlass_kernelPf:
  REG:28
"""
SASS = """
Fatbin elf code:
================
\tcode for sm_90a

\t\tFunction : _Zone
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                        /* 0x00000a00ff017b82 */
                                                                                 /* 0x000fe20000000800 */
        /*0010*/                   EXIT ;                          /* 0x0000000000057919 */
\t\t..........

\t\tFunction : _Ztwo
        /*0000*/                   NOP ;                        /* 0x00000a00ff017b82 */
\t\t..........
"""
PTX = """
Fatbin ptx code:
================
.version 9.4
.target sm_80
.address_size 64

.visible .entry _Zone(
.param .u64 _Zone_param_0
)
.maxntid 256
{
ret;
}
.entry _Zoneandahalf(
)
{
trap;
}
"""
ELF = "".join(f"ELF file 1: relu.{name}.cubin\n" for name in ("sm_75", "sm_80", "sm_86", "sm_90a", "sm_100"))


@pytest.fixture
def lists(monkeypatch):
    listings = {"--dump-resource-usage": USAGE, "--dump-sass": SASS, "--dump-ptx": PTX, "--list-elf": ELF}
    monkeypatch.setattr(machine_code, "dump", lambda option, *_: listings[option])
    monkeypatch.setattr(machine_code, "find_tool", lambda name: name)


def test_kernels_of_a_source_file(lists):
    assert machine_code.kernels_of("relu", "float4") == ["_Zfloat4_kernelEPf"]
    assert machine_code.kernels_of("linear_backward", "naive") == ["_Zx_kernelIfEvPT_"]
    assert machine_code.kernels_of("linear", "cutlass") == ["_Zcutlass_kernelPf"]
    for op, variant in (("relu_max_pool2d", "float2"), ("relu", "naive"), ("lin", "naive")):
        with pytest.raises(UnavailableError, match=f"no source file of {op}'s variant {variant}"):
            machine_code.kernels_of(op, variant)


def test_machine_code_without_its_bits(lists):
    code = machine_code.sass(["_Ztwo", "_Zone"], "9.0")
    assert re.findall(r"Function : (\w+)|; *$|(EXIT|NOP)", code, re.MULTILINE)
    assert code.index("_Ztwo") < code.index("NOP") < code.index("_Zone") < code.index("EXIT")
    assert code.count("// sm_90a") == 2
    assert "0x00000a00ff017b82" not in code
    assert "...." not in code
    with pytest.raises(UnavailableError, match="holds of _Zthree no machine code for sm_90a"):
        machine_code.sass(["_Zone", "_Zthree"], "9.0")


def test_architectures(lists):
    taken = {name: machine_code._architecture(name) for name in ("7.5", "8.0", "8.7", "9.0", "10.3", "")}
    assert list(taken.values()) == ["sm_75", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_100"]
    for lacking in ("7.0", "9.1", "12.0"):
        with pytest.raises(UnavailableError, match=f"no machine code for compute capability {lacking}"):
            machine_code._architecture(lacking)


def test_ptx(lists):
    assert machine_code.ptx(["_Zone"]) == (
        ".version 9.4\n.target sm_80\n.address_size 64\n\n"
        ".visible .entry _Zone(\n.param .u64 _Zone_param_0\n)\n.maxntid 256\n{\nret;\n}\n"
    )
    with pytest.raises(UnavailableError, match="holds of _Ztwo no PTX"):
        machine_code.ptx(["_Ztwo"])


def test_without_the_tool(monkeypatch, capsys):
    monkeypatch.setattr(machine_code.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(_native, "cuda_status", lambda: {"reason": "no GPU was found"})
    assert cli.main(["bench", "ops", "--op", "relu", "--variant", "float4", "--sass"]) == 4
    assert "there is no cuobjdump to read machine code with; " in capsys.readouterr().err


def test_usage(capsys):
    for argv in (["--sass"], ["--ptx", "--op", "relu"], ["--sass", "--variant", "float4"]):
        assert "name it by --op and --variant" in prints(capsys, "bench", "ops", *argv, code=2)


def test_the_real_thing(monkeypatch, capsys):
    """Without a GPU, as far as the build and the tools go."""
    if "nvcc" not in _native.BUILD:
        pytest.skip("this build has no CUDA code")
    try:
        for tool in ("cuobjdump", "nvdisasm"):
            machine_code.find_tool(tool)
    except UnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(_native, "cuda_status", lambda: {"reason": "no GPU was found"})
    assert cli.main(["bench", "ops", "--op", "relu", "--variant", "float4", "--sass"]) == 0
    out, err = capsys.readouterr()
    assert "no GPU was found; so this is all of the variant's source file" in err
    assert "relu_forward_float4_kernel" in out
    assert "EXIT ;" in out
