"""scripts/check kernel-resources: what it makes of cuobjdump's listing, and what it calls a difference."""

import os
import shutil

import pytest
from checks import kernel_resources as script
from tiny import run_check, shell_program

from mnist_cuda.bench import machine_code
from mnist_cuda.errors import UnavailableError

STEP = "_ZN5mnist5fused13update_kernelINS0_6PolicyILNS_9PrecisionE3EEEEEvNS0_5StateEi"
SLAB = "_ZN5mnist5fused12_GLOBAL__N_121slab_to_engine_kernelEPfPKf"
LISTING = f"""
Fatbin elf code:
================
arch = sm_80
code version = [1,7]

Resource usage:
 Common:
  GLOBAL:0
 Function {STEP}:
  REG:85 STACK:0 SHARED:15616 LOCAL:0 CONSTANT[0]:900 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function {SLAB}:
  REG:12 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:368 TEXTURE:0 SURFACE:0 SAMPLER:0

arch = sm_90a
 Function {STEP}:
  REG:86 STACK:0 SHARED:16640 LOCAL:0 CONSTANT[0]:900 TEXTURE:0 SURFACE:0 SAMPLER:0

arch = sm_120
 Function {STEP}:
  REG:87 STACK:16 SHARED:16640 LOCAL:0 CONSTANT[0]:900 TEXTURE:0 SURFACE:0 SAMPLER:0
Fatbin ptx code:
arch = sm_120
"""


FENCE = "        /*0b40*/                   FENCE.VIEW.ASYNC.S ;\n"
SASS = f"""
\t\tFunction : {SLAB}
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
\t\tFunction : {STEP}
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
{FENCE}{FENCE}        /*0b50*/              @!P0 STL.64 [R1+0x8], R16 ;
        /*0b60*/                   LDL.LU R17, [R1+0x14] ;
        /*0b70*/                   LDL R17, [R1+0x14] ;
        /*0b80*/               @P3 R2UR UR10, R2 ;
        /*0b90*/                   LDS R2, [R1] ;
"""


NONE = "0 fences, 0 accesses to local memory, 0 R2UR"


@pytest.fixture
def build(tmp_path, monkeypatch):
    """build(listing): a module of which cuobjdump says this; returns what the script's command gives for it."""
    for tool in ("cuobjdump", "nvdisasm"):
        shell_program(tmp_path / tool, f'[ "$1" = --dump-sass ] && cat {tmp_path}/sass || cat {tmp_path}/listing')
    monkeypatch.setattr(machine_code, "_tool_path", lambda: f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "TABLE", tmp_path / "table.csv")
    if shutil.which("c++filt") is None:
        pytest.skip("no c++filt")

    def run(listing, *argv, version="13.4.92", sass=SASS):
        (tmp_path / "listing").write_text(listing)
        (tmp_path / "sass").write_text(sass)
        return run_check(script, *argv, "--nvcc", version, "module.so")

    return run


def test_the_table(build):
    assert build(LISTING, "--write") == 0
    assert script.TABLE.read_text().splitlines()[4:] == [
        "kernel,architecture,registers,stack,shared,fences,local,r2ur",
        "fused::slab_to_engine_kernel,80,12,0,0,0,0,0",
        "fused::update_kernel<bf16>,80,85,0,15616,0,0,0",
        "fused::update_kernel<bf16>,90a,86,0,16640,2,3,1",
        "fused::update_kernel<bf16>,120,87,16,16640,0,0,0",
    ]
    assert build(LISTING) == 0


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            "REG:87 STACK:16",
            "REG:88 STACK:24",
            f"fused::update_kernel<bf16>, sm_120: 87 registers, 16 bytes of stack, 16640 of shared memory, {NONE} in "
            f"the table, 88 registers, 24 bytes of stack, 16640 of shared memory, {NONE} in this build",
        ),
        (
            "sm_120\n Function",
            "sm_121\n Function",
            "fused::update_kernel<bf16>, sm_121: not there in the table, 87 registers, 16 bytes of stack, "
            f"16640 of shared memory, {NONE} in this build",
        ),
        (
            SLAB,
            SLAB.replace("12_GLOBAL__N_121slab_to_engine", "12_GLOBAL__N_120slab_to_torch1"),
            f"fused::slab_to_engine_kernel, sm_80: 12 registers, 0 bytes of stack, 0 of shared memory, {NONE} in the "
            "table, not there in this build",
        ),
    ],
)
def test_differences(build, capsys, before, after, line):
    build(LISTING, "--write")
    assert before in LISTING
    assert build(LISTING.replace(before, after)) == 1
    out = capsys.readouterr().out
    assert line in out.splitlines()
    assert "run scripts/check kernel-resources --write and commit its table" in out


def test_a_build_for_fewer_architectures(build, capsys):
    build(LISTING, "--write")
    fewer = LISTING[: LISTING.index("\narch = sm_90a")]
    assert build(fewer) == 1
    capsys.readouterr()
    assert build(fewer, "--built") == 0
    assert capsys.readouterr().out == "2 kernels for sm_80: 0 lines differ\n"


@pytest.mark.parametrize(
    ("instruction", "words"),
    [(FENCE, "1 fences, 3 access"), ("LDL R17", "2 fences, 2 access"), ("R2UR", "3 accesses to local memory, 0 R2UR")],
)
def test_an_instruction_is_missed(build, capsys, instruction, words):
    build(LISTING, "--write")
    assert build(LISTING, sass=SASS.replace(instruction, "", 1)) == 1
    out = capsys.readouterr().out
    assert "2 fences, 3 accesses to local memory, 1 R2UR in the table" in out
    assert words in out


def test_another_compiler(build, capsys):
    build(LISTING, "--write")
    assert build(LISTING, version="13.4.9") == 1
    assert "the table is by nvcc 13.4.92, this build by nvcc 13.4.9\n" in capsys.readouterr().out


def test_what_is_missing(build, monkeypatch):
    with pytest.raises(UnavailableError, match=r"module\.so holds no machine code for a GPU"):
        build("no code")
    monkeypatch.setattr(machine_code, "_tool_path", lambda: "")
    with pytest.raises(UnavailableError, match="there is no cuobjdump"):
        build(LISTING)


@pytest.mark.parametrize(("precision", "halves"), [("bf16", 1), ("bf16", 2), ("tf32", 1)])
def test_fc_has_registers_beside_conv_forward(precision, halves):
    """Of a multiprocessor's 65,536, eight a thread at a time: else its weights come after conv_forward."""
    table = script.read_table(script.TABLE.read_text())

    def registers(kernel):
        return -(-table[f"fused::{kernel}", "90a"].registers // 8) * 8

    conv_forward, fc = (
        registers(f"conv_forward_wgmma_kernel<{precision}, {halves}>"),
        registers(f"fc_kernel<{precision}>"),
    )
    assert 512 * conv_forward + 256 * fc <= 65536
