"""The `profile` command: where a training step's time goes, op by op, beside what this GPU can do."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda import machine
from mnist_cuda.bench import kernel_use
from mnist_cuda.bench.ops import roofs_text
from mnist_cuda.bench.trace import trace_events
from mnist_cuda.engine import Engine, OpTime, measure_roofs
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.engine.timing import Measurement, Summary, time_steps
from mnist_cuda.errors import UsageError
from mnist_cuda.files import atomic_write, require_writable
from mnist_cuda.judge.own_kernels import own_kernels
from mnist_cuda.run.options import DataOptions, EngineOptions, OutputOptions
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_output import JsonOutput, dumps

STEPS, STEPS_SECONDS = 100, 5.0  # as many steps as fit into that time, but at least MINIMUM_STEPS
MINIMUM_STEPS = 3
BLOCKS = 5
TRACED_STEPS = 10

Roofs = dict[str, float]


def measure_step(engine: Engine, batch_size: int) -> Summary:
    """Microseconds of the whole step as training runs it. The engine has its data set; parameters keep their values."""

    def run(steps: int) -> float:
        order = (np.arange(steps * batch_size) % engine.dataset_size).astype(np.int32)
        return time_steps(engine, order, batch_size, lr=0.0).seconds

    return Measurement(run).summary(BLOCKS)


def unit_rates(roofs: Roofs) -> dict[str, float]:
    """Operations a second of each unit of OpTime, as far as `roofs` were measured for it."""
    rates = {u: roofs[f"{u}_flops"] for u in ("fma", "tf32", "bf16") if f"{u}_flops" in roofs}
    if "bf16" in rates:
        rates["fp16"] = rates["bf16"]  # tensor cores multiply both at one rate
    return rates | {f"3x{u}": rates[u] / 3 for u in ("tf32", "fp16") if u in rates}


def roof(op: OpTime, roofs: Roofs) -> tuple[float, str] | tuple[None, None]:
    """The least microseconds that `roofs` allow the op, and which of them that is: `memory` or the op's unit.

    None where that unit was not measured.
    """
    rates = unit_rates(roofs)
    if op.unit not in rates:
        return None, None
    moving, computing = 1e6 * op.bytes / roofs["bytes_per_second"], 1e6 * op.flops / rates[op.unit]
    return (moving, "memory") if moving >= computing else (computing, op.unit)


def full_name(phase: str, op: str) -> str:
    """An op's name with its phase, unless it begins with that."""
    return op if op.startswith(phase) else f"{phase}: {op}"


def table(ops: Sequence[OpTime], roofs: Roofs | None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows: each phase in its order, below it its ops where there are more than one."""
    scale, flops = (1e12, "TFLOP/s") if roofs else (1e9, "GFLOP/s")
    columns = ("phase", "us", "share", "GB/s", flops, *(("%roof", "bound") if roofs else ()))
    total = sum(op.us for op in ops)

    def cells(name: str, us: float, op: OpTime | None) -> tuple[str, ...]:
        row = [name, console.format_count(us), f"{100 * us / total:.1f} %"]
        if op is None:
            return (*row, *[""] * (len(columns) - len(row)))
        for amount, unit in ((op.bytes, 1e9), (op.flops, scale)):
            row.append(console.format_count(amount / (op.us / 1e6) / unit) if amount else "-")
        if roofs:
            least, bound = roof(op, roofs)
            row += [f"{100 * least / op.us:.0f}", bound] if least and bound else ["-", "-"]
        return tuple(row)

    rows = []
    for phase, group in groupby(ops, lambda op: op.phase):
        inside = list(group)
        if len(inside) == 1:
            rows.append(cells(full_name(phase, inside[0].op), inside[0].us, inside[0]))
        else:
            rows.append(cells(phase, sum(op.us for op in inside), None))
            rows += [cells(f"  {op.op}", op.us, op) for op in inside]
    return columns, rows


def tool_lines(engine: Engine, ops: Sequence[OpTime], workload: Sequence[str], batch_size: int) -> list[str]:
    """Command lines that look closer with the platform's profilers; `workload` is a training run."""
    name = f"{engine.info.name}-{engine.precision}-{batch_size}"
    run = shlex.join(workload)
    if engine.info.device == "cpu":
        return [f"perf record --call-graph=dwarf --output={name}.perf {run}"]
    nsys = f"nsys profile --trace=cuda,nvtx --nvtx-domain-include=mnist-cuda --cuda-graph-trace=node --output={name}"
    ncu = "ncu --set=full --nvtx"
    if engine.info.one_launch_per_phase:  # whose graphs say more than single steps
        ncu += f" --graph-profiling=node --nvtx-include=mnist-cuda@train/ --launch-skip=60 --launch-count=12 -o {name}"
    else:  # a range is around the launches of a phase, where they do not come from a graph
        phases = {op.phase: 0.0 for op in ops}
        for op in ops:
            phases[op.phase] += op.us
        slowest = max(phases, key=lambda phase: phases[phase])
        include = shlex.quote(f"mnist-cuda@{slowest}/")
        ncu = f"MNIST_CUDA_SYNC=1 {ncu} --nvtx-include={include} --launch-skip=20 --launch-count=20 -o {name}"
    return [f"{nsys} {run}", f"{ncu} {run}"]


@dataclass(frozen=True)
class Profile:
    """A step seen op by op. step: the whole step as training runs it. steps: how many were timed op by op."""

    engine: Engine
    batch_size: int
    step: Summary
    steps: int
    roofs: Roofs | None
    ops: list[OpTime]

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "engine": self.engine.info.name,
            "precision": self.engine.precision,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "step_us": self.step.as_dict(),
            "roofs": self.roofs,
            "ops": [_with_roof(op, self.roofs) for op in self.ops],
        }


def profile(engine: Engine, batch_size: int, *, steps: int | None = None, device: int = 0) -> Profile:
    """Time a step of an engine that has its parameters and its data set; both stay. device: the engine's GPU.

    steps: by default as many as STEPS_SECONDS allow, at most STEPS.
    """
    step = measure_step(engine, batch_size)
    steps = steps or max(MINIMUM_STEPS, min(STEPS, int(STEPS_SECONDS / (step.median / 1e6))))
    measured = engine.info.device == "cuda" and engine.precision != "fp64"  # no roof of float64 is
    roofs = measure_roofs(device) if measured else None
    return Profile(engine, batch_size, step, steps, roofs, engine.profile(batch_size, steps))


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(EngineOptions, DataOptions, OutputOptions):
    """What to profile. batch_size: images a step. steps: to time, by default as `profile` chooses them.

    trace: a JSON file for some steps as a trace. own: files with kernels of the user's.
    """

    batch_size: int = 64
    steps: int | None = None
    trace: Path | None = None
    own: Sequence[Path] = ()


def command(options: ProfileOptions) -> int:
    output = JsonOutput(options.json)
    if options.trace:
        require_writable(options.trace)
    engine = options.make(own=own_kernels(options.own)) if options.own else options.make()
    own = [word for file in options.own for word in ("--with", str(file))]
    data = options.load()
    batch, count = options.batch_size, len(data.train_labels)
    if batch > count:
        raise UsageError(f"batch size {batch} exceeds the {count} training images of {data.name}")
    engine.set_parameters(init_parameters(0))
    engine.set_dataset(data.train_images, data.train_labels)
    found = profile(engine, batch, steps=options.steps, device=options.device)
    ops, roofs = found.ops, found.roofs

    source = ["--dataset", data.name, *(["--data-dir", str(options.data_dir)] if options.data_dir else [])]
    workload = ["mnist-cuda", "train", "--engine", engine.info.name, "--precision", engine.precision, *own]
    workload += ["--batch-size", str(batch), "--epochs", "1", *source]
    tools = tool_lines(engine, ops, workload, batch)

    out = console.make_console(stderr=output.on_stdout)
    on_gpu = engine.info.device == "cuda"
    gpu = machine.gpu() if on_gpu else None
    where = (gpu["name"] if gpu else "GPU") if on_gpu else machine.cpu_model()
    out.print(f"engine {engine.info.name} {engine.arithmetic}, batch {batch}, {data.name}, {where}", style="bold")
    if roofs:
        out.print(f"{roofs_text(roofs)}.")
    columns, rows = table(ops, roofs)
    console.print_table(out, columns, rows, right=columns[1:6], optional=("bound", columns[4], "GB/s"))
    out.print(_summary(found))
    kernel_use.print_table(out, "op", ((full_name(op.phase, op.op), op.kernels) for op in ops))
    out.print("\nTo look closer:")
    for line in tools:
        tool = next(word for word in line.split() if "=" not in word)
        out.print(line, soft_wrap=True)
        if not shutil.which(tool):
            out.print(f"  ({tool} is not on PATH)")
    if output:
        facts: dict[str, Any] = {
            **machine.circumstances(gpu=gpu),
            "data": {"name": data.name, "source": data.source, "digest": data.digest},
            **found.as_dict(),
            "tools": tools,
        }
        output.write(facts)
    if options.trace:
        title = f"mnist-cuda {engine.info.name} {engine.arithmetic}, batch {batch}, {where}"
        atomic_write(options.trace, dumps(trace_events(ops, title, TRACED_STEPS)).encode() + b"\n")
        out.print(f"wrote {options.trace}, for ui.perfetto.dev or chrome://tracing")
    return 0


def _with_roof(op: OpTime, roofs: Roofs | None) -> dict[str, Any]:
    least, bound = roof(op, roofs) if roofs else (None, None)
    facts = {key: value for key, value in asdict(op).items() if key != "spans"}  # those are for a trace
    return {**facts, "least_us": least, "bound": bound}


def _summary(found: Profile) -> str:
    total = sum(op.us for op in found.ops)
    text = (
        f"Medians of {console.plural(found.steps, 'step')}, together {console.format_count(total)} us; without "
        f"profiling a step takes {console.format_count(found.step.median)} us. GB/s and GFLOP/s count the least that "
        "an op must move and compute"
    )
    if not found.roofs:
        return f"{text}."
    return (
        f"{text}; %roof is the share of the op's time that this GPU needs for that at best. Data that stays in the L2 "
        "cache may exceed the memory's roof. Profiling keeps ops from overlapping and costs about 1 us per op."
    )
