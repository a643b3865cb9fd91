"""The benchmark: the worker's protocol, interleaving, void rows, ratios, tables and JSON."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_ranks import on_all
from test_ranks_processes import running
from tiny import ENVIRONMENT, prints, said, shell_program, tiny_dataset

from mnist_cuda import _native, cli, machine
from mnist_cuda.bench import competitors, step, tables
from mnist_cuda.bench.competitors import Competitor, peer_competitors
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess
from mnist_cuda.bench.rows import Cell, Row
from mnist_cuda.bench.step import plan, run_cell
from mnist_cuda.bench.variants import PEERS
from mnist_cuda.engine import Engine, engines
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.engine.timing import BLOCK_SECONDS, summarise
from mnist_cuda.errors import UsageError
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.results import Model
from mnist_cuda.run.training import epoch_order
from mnist_cuda.terminal import console

CELL = Cell(10, "device", "fp32")
NOWHERE = Path("/none/python")  # that no process is started to ask


pytestmark = pytest.mark.usefixtures("tiny")


# ---- the worker ----------------------------------------------------------------------------------------------------


def competitor_setup(folder):
    """The setup's fields of the protocol, but for batch size and precision, with their files."""
    data = tiny_dataset()
    np.savez(folder / "data.npz", images=data.train_images, labels=data.train_labels)
    save_model(folder / "weights.safetensors", Model(init_parameters(0)), steps=0)
    np.save(folder / "order.npy", epoch_order(0, 1, 35))
    files = {"npz": "data.npz", "weights": "weights.safetensors", "order": "order.npy"}
    fields = {"lr": 0.05, "threads": 1, "data": "device", "seed": 0}
    return fields | {field: str(folder / name) for field, name in files.items()}


@pytest.fixture
def setup(tmp_path):
    return competitor_setup(tmp_path) | {"batch_size": 10, "precision": "fp32"}


WORKER = (sys.executable, "-m", "mnist_cuda.bench.worker", "cpu")


def test_worker_trains_on_the_order_round_and_round(setup):
    data, engine = tiny_dataset(), Engine("cpu", threads=1)
    engine.set_parameters(init_parameters(0))
    engine.set_dataset(data.train_images, data.train_labels)
    expected, _ = engine.train(np.tile(epoch_order(0, 1, 35)[:30], 2), 10, 0.05)
    with CompetitorProcess(WORKER) as worker:
        assert worker.ask(cmd="setup", **setup)["setup_seconds"] > 0
        first, second = worker.ask(cmd="run", steps=2), worker.ask(cmd="run", steps=4)
        assert first["losses"] == [expected[0], expected[1]]
        assert second["losses"] == [expected[2], expected[5]]
        assert second["seconds"] > 0
        for again in ({"cmd": "restart"}, {"cmd": "setup", **setup}):
            worker.ask(**again)
            assert worker.ask(cmd="run", steps=6)["losses"] == [expected[0], expected[5]]


def test_several_workers_as_one(setup):
    """They are ranks of one training; an error of any of them is the answer, even while the others wait for it."""
    setup |= {"batch_size": 7}
    (engine,) = competitors.engine_competitors(["cpu"])
    (pair,) = competitors.on_gpus([replace(engine, shares_batches=True)], [2])
    with CompetitorProcess(pair.command) as workers:
        workers.ask(cmd="setup", **setup)
        answer = workers.ask(cmd="run", steps=5)
        assert answer["seconds"] > 0
        workers.ask(cmd="restart")
        assert workers.ask(cmd="run", steps=5)["losses"] == answer["losses"]
        found = workers.ask(cmd="run", steps=5)["losses"][1]
        with pytest.raises(CompetitorError, match="the npz has no test images"):
            workers.ask(cmd="evaluate")

    def train(communicator):
        data, one = tiny_dataset(), Engine("cpu", threads=1)
        one.join(communicator)
        one.set_parameters(init_parameters(0))
        one.set_dataset(data.train_images, data.train_labels)
        return one.train(np.tile(epoch_order(0, 1, 35), 2), 7, 0.05)[0]

    losses, _ = on_all(_native.in_process_communicators(2), train)
    assert answer["losses"] == [losses[0], losses[4]]
    assert found == losses[9]


def test_worker_answers_errors_in_one_line_and_goes_on(setup):
    with CompetitorProcess(WORKER) as worker:
        for command, words in (
            ({"cmd": "run", "steps": 1}, "AttributeError"),
            ({"cmd": "dance"}, "dance"),
            ({"cmd": "setup"}, "npz"),
            ({"cmd": "setup", **setup, "batch_size": 36}, "batch size 36 exceeds the 35 images"),
            ({"cmd": "setup", **setup, "precision": "bf16"}, "no precision bf16"),
        ):
            with pytest.raises(CompetitorError, match=words):
                worker.ask(**command)
        assert worker.ask(cmd="setup", **setup)["ok"] is True


@pytest.mark.parametrize("last_words", ['{"cmd": "quit"}\n', ""])
def test_worker_ends_with_its_input(last_words):
    done = subprocess.run(WORKER, input=last_words, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('no such library')", "ended with 1: no such library"),
        ("pass", "ended with 0: without a word"),
        ("print('hello')", "'hello', expected JSON"),
        ('print(\'{"error": "out of luck"}\')', "out of luck"),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_a_process_that_fails_is_an_error_in_one_line(code, words, before):
    """Also where it has ended `before` it is asked."""
    with CompetitorProcess((sys.executable, "-c", code)) as process:
        if before:
            process._process.wait()
        with pytest.raises(CompetitorError) as error:
            process.ask(cmd="setup")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [1, 2])
def test_no_process_outlives_its_block(count, tmp_path):
    """Even one that does not read its input to the end, and ranks that wait for each other."""
    code = "import os, sys, time; input(); open(f'{sys.argv[1]}/{os.getpid()}', 'w'); print('{}', flush=True)"
    command = (sys.executable, "-c", f"{code}; time.sleep(60)", str(tmp_path))
    (competitor,) = competitors.on_gpus([Competitor("", command, "cuda", (), shares_batches=True)], [count])
    with CompetitorProcess(competitor.command) as process:
        process.ask(cmd="setup")
        ranks = [int(file.name) for file in tmp_path.iterdir()]
        end = time.monotonic() + 10
    assert len(ranks) == count
    while any(map(running, ranks)):
        time.sleep(0.05)
    assert time.monotonic() < end


# ---- a cell, with competitors that only claim to work ----------------------------------------------------------------

FAKE = """
import json, sys, time
name, us, log, trouble = sys.argv[1], float(sys.argv[2]), open(sys.argv[3], "a"), sys.argv[4:]
restarted = False
for line in sys.stdin:
    command = json.loads(line)
    if command["cmd"] == "setup":
        if "hang" in trouble: time.sleep(60)
        if "slow" in trouble: time.sleep(1)
        done = 0
        answer = {"ok": True, "setup_seconds": 0.5, "versions": {name: "1.0"}}
        if "setup" in trouble: answer = {"error": "cannot be set up"}
    elif command["cmd"] == "restart":
        restarted, done, answer = True, 0, {"ok": True}
    else:
        done += command["steps"]
        print(name, command["steps"], file=log, flush=True)
        loss = done + ("loss" in trouble and restarted)
        for word in trouble:
            if word.startswith("times"): loss *= float(word.split()[1])
        answer = {"seconds": us * command["steps"] / 1e6, "losses": [0, float("nan") if "nan" in trouble else loss]}
        if "run" in trouble and done * us > 7e5: sys.exit("it broke")
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def fake(tmp_path):
    """Makes rows of fake competitors; `fake.log` has the name and the steps of each run, in order."""
    log = tmp_path / "log"

    def make(label, us, *trouble, peer=False, tolerance=0.0):
        command = (sys.executable, "-c", FAKE, label.replace(" ", "_"), str(us), str(log), *trouble)
        return Row(Competitor(label, command, "cpu", ("fp32",), {}, peer, tolerance), CELL)

    make.log = lambda: [(name, int(steps)) for name, steps in map(str.split, log.read_text().splitlines())]
    return make


def run(rows, blocks=6, seconds=100.0):
    run_cell(rows, {}, blocks, seconds, lambda fraction, text: None)


def test_figures_and_ratios(fake):
    rows = [fake("ours", 1000), fake("slow peer", 8000, peer=True), fake("fast peer", 3000, peer=True)]
    run(rows)
    assert [row.fault for row in rows] == ["", "", ""]
    assert [row.timing.median for row in rows] == pytest.approx([1000, 8000, 3000])
    assert [row.timing.count for row in rows] == [6, 6, 6]
    assert [row.ratio for row in rows] == pytest.approx([3, 3 / 8, 1])
    assert all(row.steps_per_block * row.timing.median / 1e6 >= BLOCK_SECONDS for row in rows)
    assert rows[0].setup_seconds == 0.5
    assert rows[1].versions == {"slow_peer": "1.0"}


def test_a_step_of_several_models_is_shared_among_them(fake):
    row = fake("ours", 1000)
    row.competitor = replace(row.competitor, models=4)
    run([row])
    assert row.timing.median == pytest.approx(250)
    assert row.samples_us == pytest.approx([250] * 6)
    assert row.steps_per_block * 1000 / 1e6 >= BLOCK_SECONDS
    assert tables.row_as_json(row)["models"] == 4


def test_blocks_are_interleaved(fake):
    rows = [fake("a", 1000), fake("b", 20000, peer=True)]
    run(rows)
    log = fake.log()
    timed = [name for name, _ in log][-15:-3]
    assert timed == ["a", "b"] * 6
    assert [name for name, _ in log][-3:] == ["a", "a", "b"]  # the untimed runs


def test_the_untimed_run_repeats_the_steps(fake):
    rows = [fake("a", 1000)]
    run(rows)
    steps = [steps for _, steps in fake.log()]
    before_second_block, untimed = steps[: -2 - 5], steps[-2:]
    assert untimed[0] == step.COMMON_STEPS
    assert sum(untimed) == sum(before_second_block)
    assert rows[0].losses == (sum(untimed), sum(untimed))
    assert rows[0].common_loss == step.COMMON_STEPS


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize(("share", "sound"), [(1.019, True), (1.021, False)])
def test_a_peer_with_another_loss_than_ours_has_no_figures(fake, share, sound, gpus):
    """Even if it repeats itself, as one that computes something else does, and on several GPUs."""
    rows = [fake("ours", 1000), fake("peer", 10, f"times {share}", peer=True), fake("good peer", 2000, peer=True)]
    rows[1].competitor = replace(rows[1].competitor, gpus=gpus)
    run(rows)
    assert (rows[1].fault == "") == sound
    if not sound:
        assert rows[1].fault == "void: its loss after 50 steps is 51.05, that of ours 50"
        assert rows[0].ratio == pytest.approx(2)


def test_set_ups_at_once_and_too_late(fake):
    """A competitor that hangs in its set-up costs its limit once, and nobody else."""
    rows = [fake("hangs", 1000, "hang", peer=True), *(fake(name, 1000, "slow") for name in "abcd")]
    start = time.monotonic()
    run_cell(rows, {}, 3, 100.0, lambda fraction, text: None, step.SetUpLimits(5, 2.0))
    assert time.monotonic() - start < 12
    assert [row.fault for row in rows] == ["failed: it was not set up within 2 s", "", "", "", ""]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("loss", "void: its loss after the timed block is"),
        ("nan", "void: its loss after the timed block is nan"),
        ("setup", "failed: cannot be set up"),
        ("run", "failed: its process ended with 1: it broke"),
    ],
)
def test_a_faulty_competitor_has_no_figures_and_harms_nobody(fake, trouble, words):
    rows = [fake("ours", 1000), fake("peer", 10, trouble, peer=True), fake("good peer", 2000, peer=True)]
    run(rows)
    assert rows[1].fault.startswith(words)
    assert rows[1].ratio is None
    assert rows[0].ratio == pytest.approx(2)


def test_what_failed_is_ended_at_once(fake, monkeypatch):
    """Not with the cell: a rank that waits for one that failed would keep its GPU busy beside those that are timed."""
    killed, before = [], []
    kill, finish = CompetitorProcess.kill, step.Contestant.finish
    monkeypatch.setattr(CompetitorProcess, "kill", lambda self: (killed.append(self), kill(self)))
    monkeypatch.setattr(step.Contestant, "finish", lambda self, *a: (before.append(len(killed)), finish(self, *a)))
    rows = [fake("ours", 1000), fake("peer", 10, "setup", peer=True)]
    run(rows)
    assert [row.fault for row in rows] == ["", "failed: cannot be set up"]
    assert before == [1]


def test_a_peer_may_differ_within_its_tolerance(fake):
    rows = [fake("peer", 10, "loss", peer=True, tolerance=1e-2)]  # 1 in tens of thousands
    run(rows)
    assert rows[0].fault == ""


def test_slow_competitors_stop_at_three_blocks(fake):
    rows = [fake("slow", 9e6), fake("fast", 1000)]
    run(rows, blocks=20, seconds=10)
    assert [row.timing.count for row in rows] == [3, 20]


# ---- who takes part --------------------------------------------------------------------------------------------------


def test_plan():
    ours = Competitor("ours", (), "cpu", ("fp32",))
    exact = Competitor("exact", (), "cpu", ("fp64",))
    peer = Competitor("peer", (), "cpu", ("fp32", "bf16"), peer=True)
    gone = Competitor("gone", (), "cuda", ("fp32",), unavailable="no GPU")
    cells = [Cell(64, "device", p) for p in ("fp32", "fp64")]

    def rows(chosen):
        return [(r.competitor.label, r.cell.precision, r.fault) for r in plan([ours, exact, peer, gone], cells, chosen)]

    assert rows(False) == [
        ("ours", "fp32", ""),
        ("peer", "fp32", ""),
        ("gone", "fp32", "no GPU"),
        ("exact", "fp64", ""),
    ]
    assert ("exact", "fp32", "has no precision fp32, it offers fp64") in rows(True)

    old = Competitor("old", (), "cuda", ("fp32", "tf32"), unavailable_precisions={"tf32": "too old"})
    fp32, tf32 = plan([old], [Cell(64, "device", p) for p in old.precisions], True)
    assert (fp32.fault, fp32.absent, tf32.fault, tf32.absent) == ("", False, "too old", True)


def test_peers_of_a_device():
    rows = peer_competitors(["torch", "jax"], ["cpu"], NOWHERE)
    assert {row.label for row in rows} > {"torch eager NHWC", "torch compile NHWC jemalloc", "jax scan"}
    assert all(row.peer for row in rows)
    with pytest.raises(UsageError, match="peer 'torch' has no variant 'xla'; words for torch: eager, NCHW"):
        peer_competitors(["torch:xla"], ["cuda"], NOWHERE)
    with pytest.raises(
        UsageError, match=r"peer 'caffe' is unknown, expected one of torch, jax; words for torch: .*; for jax: .*vjp"
    ):
        peer_competitors(["caffe"], ["cpu"], NOWHERE)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("torch:graph", ["torch graph NCHW", "torch graph NHWC"]),
        ("torch:fp16:NHWC:graph", ["torch graph fp16 NHWC"]),
        ("torch:compile:whole:floats", ["torch compile whole NCHW floats", "torch compile whole NHWC floats"]),
        ("jax:scan", ["jax scan"]),
        ("jax:", ["jax scan"]),
        ("jax:vjp:tf32x3", ["jax scan vjp tf32x3"]),
    ],
)
def test_words_take_the_plainest_variants_that_have_them(name, labels):
    assert [c.label for c in peer_competitors([name], ["cuda"], NOWHERE)] == labels


def test_every_variant_is_named_by_its_words_and_its_options_are_its_scripts():
    for name, peer in PEERS.items():
        source = (competitors.PEER_SCRIPTS / peer.script).read_text()
        for device in ("cpu", "cuda"):
            variants = [v for v in peer.variants if v.device == device]
            assert len({v.label for v in variants}) == len(variants)
            assert any(v.usual for v in variants)
            for variant in variants[:: 1 + len(variants) // 50]:
                (found,) = peer_competitors([":".join((name, *variant.words))], [device], NOWHERE)
                assert found.label == variant.label
        assert all(f'"{word}"' in source for v in peer.variants for word in v.options)


def test_storage_and_precisions_of_16_bits():
    (half,) = peer_competitors(["torch:graph:fp16:NHWC"], ["cuda"], NOWHERE)
    (plain,) = peer_competitors(["torch:graph:NHWC"], ["cuda"], NOWHERE)
    assert half.precisions == ("tf32",)
    assert [half.storage("tf32"), *(plain.storage(p) for p in ("tf32", "bf16", "fp32"))] == [16, 32, 16, 32]
    (fused,) = competitors.engine_competitors(["fused"])
    assert [fused.storage(p) for p in ("fp32", "tf32", "bf16")] == [32, 16, 16]
    (reference,) = competitors.engine_competitors(["reference"])
    assert reference.storage("fp64") == 64


def test_an_allocator_is_preloaded_or_its_absence_says_what_to_install(monkeypatch):
    python = sys.executable
    for library, command, reason in (
        ("libjemalloc.so.2", ("env", "LD_PRELOAD=libjemalloc.so.2"), ""),
        (None, (python,), "there is no jemalloc on this machine; install it (Debian and Ubuntu: libjemalloc2)"),
    ):
        monkeypatch.setattr(competitors, "find_library", lambda name, found=library: found)
        monkeypatch.setattr(competitors, "has_module", lambda *_: True)
        competitors._preload.cache_clear()
        (row,) = peer_competitors(["torch:eager:NHWC:jemalloc"], ["cpu"], Path(python))
        assert row.command[: len(command)] == command
        assert row.unavailable == reason
    competitors._preload.cache_clear()


def test_rows_on_several_gpus():
    one = Competitor("one", ("python", "one.py"), "cuda", ("bf16",))
    both = Competitor("both", ("python", "both.py"), "cuda", ("bf16",), shares_batches=True)
    rows = competitors.on_gpus([one, both], [1, 2])
    assert [row.label for row in rows] == ["one", "both", "both x2"]
    assert rows[2].command[1:] == ("-m", "mnist_cuda.bench.fan_out", "2", "python", "both.py")
    peers = peer_competitors(["torch:", "jax:"], ["cuda"], NOWHERE)
    assert [row.label for row in peers if row.shares_batches] == [
        *(f"torch {mode} {layout}" for mode in ("eager", "graph", "compile") for layout in ("NCHW", "NHWC")),
        "jax scan",
    ]


def test_gpu_facts_come_from_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu() is None
    rows = "echo 'NVIDIA H200, 580.65, 1980, 1980, 3201, 30, 75.10'; echo 'A100, 580.65, 1, 2, 3, 4, 5'"
    shell_program(tmp_path / "nvidia-smi", rows)
    assert machine.gpu()["name"] == "NVIDIA H200"
    assert machine.gpu()["power.draw"] == "75.10"
    shell_program(tmp_path / "nvidia-smi", "echo 'no devices were found'")
    assert machine.gpu() is None


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command(capsys):
    argv = ["bench", "--engines", "reference", "--batch-size", "5,6", "--blocks", "3", "--seconds", "0"]
    out = prints(capsys, *argv, "--peer-python", "/none/python", "--json", "b.json")
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("batch")] == ["batch 5", "batch 6"]
    assert "data: tiny" in out
    assert sum(line.startswith("reference") for line in lines) == 2
    assert "\x1b" not in out
    tables = [line for line in lines if line.startswith(("competitor", "reference", "torch eager NCHW  "))]
    assert max(map(len, tables)) <= 80
    record = json.loads(Path("b.json").read_text())
    assert {"commit", "command", "versions", "machine", "iteration", "settings", "data"} <= record.keys()
    found = [(row["competitor"], row["batch_size"]) for row in record["rows"]]
    assert found == [("reference", 5), ("reference", 6)]  # no peer is held to fp64
    row = record["rows"][0]
    assert row["us"]["count"] == len(row["samples_us"]) == 3
    assert row["loss_timed_untimed"][0] == row["loss_timed_untimed"][1]


def test_a_peer_that_is_not_installed_is_one_line(tmp_path, capsys):
    argv = ["bench", "--engines", "cpu", "--batch-size", "5,6", "--blocks", "3", "--seconds", "0"]
    argv += ["--peers", "torch:eager", "jax:scan", "--peer-python", "/none/python", "--json", str(tmp_path / "b.json")]
    lines = prints(capsys, *argv).splitlines()
    remedy = "or name another --peer-python"
    assert [line for line in lines if "torch" in line or "jax" in line] == [
        f"left out: torch is not installed (there is no /none/python); `scripts/peers` installs it, {remedy}",
        f"left out: jax is not installed (there is no /none/python); `scripts/peers --jax` installs it, {remedy}",
    ]
    assert sum(line.startswith("cpu") for line in lines) == 2
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [row["competitor"] for row in rows if row["fault"] and row["batch_size"] == 5] == [
        "torch eager NCHW",
        "torch eager NHWC",
        "jax scan",
    ]


def test_a_stopped_benchmark_keeps_its_tables(tmp_path, monkeypatch):
    def stop_at_the_second(rows, *rest):
        if rows[0].cell.batch_size == 6:
            raise KeyboardInterrupt
        return run_cell(rows, *rest)

    monkeypatch.setattr(step, "run_cell", stop_at_the_second)
    argv = ["bench", "--engines", "reference", "--peers", "--batch-size", "5,6", "--blocks", "3", "--seconds", "0"]
    assert cli.main([*argv, "--json", str(tmp_path / "b.json")]) == 130
    assert [row["batch_size"] for row in json.loads((tmp_path / "b.json").read_text())["rows"]] == [5]


@pytest.fixture
def terminal(monkeypatch):
    """terminal(columns): stdout is taken for a terminal of that width."""

    def make(columns):
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(columns)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr(console, "on_terminal", lambda _: True)

    return make


def table(capsys):
    """The header, as words, and the lines that tables.print_rows prints for one peer."""
    row = Row(Competitor("torch eager NCHW", (), "cpu", ("fp32",), peer=True), Cell(64, "device", "fp32"))
    row.timing, row.setup_seconds, row.ratio = summarise([12345.0]), 1.5, 1.0
    tables.print_rows(console.make_console(), 64, "device", [row])
    lines = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("competitor"))
    return lines[first].replace("median us", "median_us").split(), lines[first + 1 :]


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [(80, ""), (64, "p5"), (56, "p5, p95"), (40, "p5, p95, set-up, n"), (20, "p5, p95, set-up, n")],
)
def test_a_narrow_terminal_costs_columns_but_never_whose_figures_they_are(columns, left_out, terminal, capsys):
    terminal(columns)
    header, lines = table(capsys)
    all_columns = [name.replace(" ", "_") for name in tables.COLUMNS]
    assert header == [name for name in all_columns if name not in left_out.split(", ")]
    assert lines[0].startswith("torch eager NCHW  fp32  ")
    assert lines[0].endswith("1.00x")
    assert " ".join(" ".join(lines[1:]).split()).rpartition(": ")[2] == left_out


def test_a_table_in_a_file_is_as_wide_as_it_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    header, lines = table(capsys)
    assert len(header) == len(tables.COLUMNS)
    assert len(lines) == 1


def test_what_a_precision_does_not_say_is_below_the_tables(capsys):
    ours, peer = (
        Competitor("fused", (), "cuda", ("tf32", "bf16")),
        Competitor("torch", (), "cuda", ("tf32",), peer=True),
    )
    said = {"tf32": "tf32 (fp16 in units)", "bf16": "bf16"}
    rows = [Row(ours, Cell(b, "device", p), precision_pinned=said[p]) for b in (64, 256) for p in said]
    rows += [
        Row(peer, Cell(64, "device", "tf32"), precision_pinned="allow_tf32"),
        Row(ours, Cell(64, "device", "fp32")),
    ]
    tables.print_arithmetic(console.make_console(), rows)
    assert capsys.readouterr().out == "fused in tf32 (fp16 in units)\n"


def test_the_progress_bar_is_gone_before_its_table(terminal, capsys):
    terminal(80)
    argv = ["bench", "--engines", "reference", "--batch-size", "5", "--peers", "--blocks", "3", "--seconds", "0"]
    bar, table = prints(capsys, *argv).split("\x1b[1mbatch")
    assert "━" in bar
    assert "━" not in table.partition("\nreference")[0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--engines", "warp"], "engine 'warp' is unknown"),
        (["--peers", "caffe"], "peer 'caffe' is unknown"),
        (["--precisions", "fp99"], "--precisions is fp99, expected some of "),
        (["--batch-size", "64,many"], "--batch-size is 64,many"),
        (["--batch-size", "0"], "at least 1"),
        (["--batch-size", "36"], "--batch-size has 36, expected at most the 35 images"),
        (["--engines", "cpu", "--gpus", "2", "4", "2"], "--gpus is 2 4, expected 1: no batch is shared by engine cpu"),
    ],
)
def test_usage_errors(argv, words, capsys):
    code, out, err = said(capsys, "bench", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("engine", [row.name for row in engines() if row.unavailable][:1])
def test_an_engine_asked_for_by_name_that_cannot_run(engine, capsys):
    assert f"engine '{engine}' cannot run here: " in prints(capsys, "bench", "--engines", engine, code=4)
    argv = ["bench", "--engines", f"{engine},reference", "--batch-size", "5", "--peers", "--blocks", "3"]
    assert cli.main([*argv, "--seconds", "0"]) == 4
    out = capsys.readouterr().out
    assert f"{engine} fp32: " in out
    assert "reference" in out


def test_against_pytorch(tmp_path, capsys, peer):
    """The peer does the same work: same loss after the same steps, within fp32."""
    argv = ["bench", "--engines", "cpu", "--batch-size", "8", "--blocks", "3", "--seconds", "0"]
    argv += ["--peers", "torch:eager", "torch:eager:NHWC:floats"]
    prints(capsys, *argv, "--peer-python", peer.command[0], "--json", tmp_path / "b.json")
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    labels = ["torch eager NCHW", "torch eager NHWC", "torch eager NHWC floats"]
    assert [row["competitor"] for row in rows] == ["cpu", *labels]
    assert [row["storage"] for row in rows] == [32] * 4
    assert all(row["fault"] is None for row in rows)
    assert max(row["ratio"] for row in rows[1:]) == 1
    assert rows[1]["precision_pinned"]
