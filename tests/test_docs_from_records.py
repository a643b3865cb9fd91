"""scripts/docs tables: the documentation holds what the records say, and a change of either is noticed."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
from pages import __main__ as program
from pages import tables
from pages.records import RecordError
from test_bench_share import record as card_record

SVG = "{http://www.w3.org/2000/svg}"
VERSIONS = {"torch": {"torch": "2.13.0+cpu", "numpy": "2.4.6"}, "jax": {"jax": "0.11.2"}}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, at work in a folder of its own."""
    (tmp_path / "docs" / "records").mkdir(parents=True)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    return tables


def bench_row(competitor, batch_size, median, **more):
    return {
        "competitor": competitor,
        "peer": competitor.startswith(("torch", "jax")),
        "batch_size": batch_size,
        "data": "device",
        "precision": "fp32",
        "fault": None if median else "is not installed",
        "us": {"median": median} if median else None,
        "versions": VERSIONS.get(competitor.split()[0], {}),
    } | more


def bench_record(*rows):
    return {
        "started": "2026-11-20T12:00:00+00:00",
        "command": "mnist-cuda bench",
        "commit": "0123456789" * 4,
        "machine": {"cpu": "A Processor", "cores": 2, "load_before": [0.5, 0.0, 0.0], "load_after": [9.0, 0.0, 0.0]},
        "versions": {"mnist-cuda": "0.1.0"},
        "settings": {"threads": 2},
        "rows": list(rows),
    }


TWO_BATCHES = bench_record(
    bench_row("cpu", 64, 1000.0),
    bench_row("torch eager NCHW", 64, 9000.0),
    bench_row("torch eager NHWC", 64, 8000.0),
    bench_row("cpu", 256, 2000.0),
    bench_row("torch eager NCHW", 256, 25000.0),
    bench_row("torch eager NHWC", 256, None),
)


def test_a_record_a_precision_and_peers_in_16_bits(script):
    """In tf32 peers that store fp16 have a row of their own, and the ratio is to the faster of the two."""
    tf32 = {"precision": "tf32"}
    records = [
        bench_record(bench_row("fused", 64, 40.0), bench_row("torch graph NHWC", 64, 400.0)),
        bench_record(
            bench_row("fused", 64, 30.0, **tf32),
            bench_row("torch max-autotune NHWC", 64, 300.0, **tf32, storage=32),
            bench_row("torch max-autotune fp16 NHWC", 64, 240.0, **tf32, storage=16),
            bench_row("jax scan", 64, 270.0, **tf32, storage=32),
        ),
        bench_record(
            bench_row("fused", 64, 20.0, precision="bf16"),
            bench_row("jax scan", 64, 200.0, precision="bf16", storage=16),
        ),
    ]
    assert script.render_bench(records, "x").splitlines()[2:10] == [
        "| fused, bf16 | **20.0** (10.0x) |",
        "| JAX, bf16 | **200** scan |",
        "| fused, tf32 | **30** (8.0x) |",
        "| PyTorch, tf32 | 300 max-autotune NHWC |",
        "| PyTorch, fp16 | **240** max-autotune NHWC |",
        "| JAX, tf32 | 270 scan |",
        "| fused, fp32 | **40** (10.0x) |",
        "| PyTorch, fp32 | **400** graph NHWC |",
    ]
    fastest = "the fastest timed variant of PyTorch or JAX"
    assert script.render_speed_up(records, "fused") == f"8.0 to 10 times as fast as {fastest}"
    texts = [element.text for element in ET.fromstring(script.draw_bench(records)).iter(f"{SVG}text")]
    assert "8.0x" in texts
    assert any("for tf32 also in fp16" in str(text) for text in texts)


def test_of_a_programs_times_in_a_cell_the_latest_counts(script):
    first = bench_record(bench_row("fused", 64, 20.0), bench_row("torch a", 64, 200.0), bench_row("torch b", 64, 230.0))
    second = bench_record(bench_row("fused", 64, 22.0), bench_row("torch a", 64, 242.0))
    lines = script.render_bench([first, second], "x").splitlines()
    assert lines[2:4] == ["| fused, fp32 | **22.0** (10.5x) |", "| PyTorch, fp32 | **230** b |"]


def test_where_an_image_costs_more(script):
    us = dict.fromkeys(("mean", "p5", "p95", "min"), 0.0) | {"count": 5}
    costs = ("fp32", 1, 10.0), ("fp32", 2, 24.0), ("fp32", 3, 30.0), ("bf16", 1, 10.0), ("bf16", 2, 22.0)
    rows = [
        {"engine": "fused", "precision": precision, "batch_size": batch, "us": us | {"median": median}}
        for precision, batch, median in costs
    ]
    _, title, notes = script.draw_batches(
        {"rows": rows, "machine": {"gpu": {"name": "a GPU"}}, "settings": {"threads": 0}}
    )
    assert title == "Microseconds per image, fused, a GPU"
    assert notes == (
        "In bf16, in no batch does an image cost over 15 % more than in the one before.\n"
        "In fp32, of 2 images each costs 20 % more than of 1."
    )


def test_cells_of_medians(script):
    assert script.render_us([TWO_BATCHES], "cpu", "fp32", "64", "256") == "1,000 | 2,000"
    assert script.render_us([TWO_BATCHES], "peer", "fp32", "64") == "8,000 torch eager NHWC"
    assert script.render_us([], "naive", "fp32", "64", "256") == "- | -"
    for name, precision, batch in (("cpu", "fp32", "1024"), ("tiled", "fp32", "64"), ("cpu", "fp64", "64")):
        with pytest.raises(KeyError):
            script.render_us([TWO_BATCHES], name, precision, batch)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": None}, "it says none"),
        ({"commit": "0123456789" * 4 + "-dirty"}, "-dirty)"),
        ({"commit": "0123456"}, "it says 0123456)"),
        ({"command": ""}, "its command"),
        ({"versions": {}}, "versions"),
        ({"machine": {"cpu": "A Processor", "cores": 2}}, "the load before it"),
        ({"machine": {"load_before": [0.1]}}, "the machine"),
    ],
)
def test_a_record_that_lacks_something_is_refused(script, change, words):
    (script.ROOT / "docs" / "records" / "cpu").mkdir()
    (script.ROOT / "docs" / "records" / "cpu" / "step.json").write_text(json.dumps(TWO_BATCHES | change))
    (script.ROOT / "README.md").write_text("<!-- record:cpu -->\n<!-- /record -->\n")
    with pytest.raises(RecordError, match="step.json lacks .*" + re.escape(words)):
        script.Documents()


def test_a_text_needs_the_record_of_its_name(script):
    folder = script.ROOT / "docs" / "records" / "accuracy"
    folder.mkdir()
    (folder / "run.txt").write_text("98 %\n")
    (script.ROOT / "README.md").write_text("<!-- record:accuracy/run.txt -->\n<!-- /record -->\n")
    with pytest.raises(RecordError, match=r"run\.json"):
        script.Documents()
    (folder / "run.json").write_text(json.dumps(TWO_BATCHES))
    text = script.Documents().files[script.ROOT / "README.md"]
    sentence = "A Processor, 2 threads, 2026-11-20. [Record, with its command](docs/records/accuracy)."
    assert f"```\n98 %\n```\n\n{sentence}" in text


def test_check_notices_what_is_stale(script, monkeypatch, capsys):
    readme, chart = script.ROOT / "README.md", script.ROOT / "docs" / "chart.svg"
    readme.write_text(
        "<!-- speed-up:step.json cpu -->old<!-- /speed-up --> <!-- speed-up:h100 a --><!-- /speed-up -->\n"
        "<!-- chart:step.json docs/chart.svg -->\n<!-- /chart -->\n<!-- record:none -->\n<!-- /record -->\n"
    )
    record = script.ROOT / "docs" / "records" / "step.json"
    record.write_text(json.dumps(TWO_BATCHES))

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["scripts/docs", "tables", *arguments])
        code, shown = program.main(), capsys.readouterr()
        assert (shown.err == "stale: run scripts/docs tables\n") == bool(code)
        return code, re.findall(r"(?m)^--- (?:.*/)?(\S+)", shown.out)

    assert run("--check") == (1, ["chart.svg", "README.md"])
    assert run() == (0, [])
    fastest = "the fastest timed variant of PyTorch"
    speed_up = f"<!-- speed-up:step.json cpu -->8.0 to 12 times as fast as {fastest}<!-- /speed-up -->"
    assert readme.read_text().startswith(f"{speed_up} <!-- speed-up:h100 a -->no record yet<!-- /speed-up -->\n")
    assert "](docs/chart.svg)\n<!-- /chart -->\n<!-- record:none -->\nThere is no record yet.\n" in readme.read_text()
    assert run("--check") == (0, [])
    chart.write_text(chart.read_text().replace("8.0x", "9.0x"))
    assert run("--check") == (1, ["chart.svg"])


def test_a_record_of_other_steps_says_so(script):
    record = bench_record(bench_row("fused, 33 side by side", 64, 9.06)) | {"step": "model-step"}
    assert script.render_bench([record], "x").splitlines()[::2][:2] == [
        "| µs per model-step | B=64 |",
        "| fused, 33 side by side, fp32 | **9.1** |",
    ]


def test_cards_have_rows_or_none(script, tmp_path):
    def rows():
        text = script.render_cards(tmp_path, str)
        assert len({line.count("|") for line in text.splitlines()}) == 1
        return [line.partition(" |")[0] for line in text.splitlines()[2:]]

    nothing = rows()
    assert nothing == [f"| {name}" for name in script.CARDS]
    (tmp_path / "a.json").write_text(json.dumps(card_record(gpu=None)))
    (tmp_path / "l4.json").write_text(json.dumps(card_record(gpu="NVIDIA L4")))
    assert rows() == ["| NVIDIA L4", "| A Processor, 2 threads", *(row for row in nothing if row != "| L4")]
    (tmp_path / "b.json").write_text(json.dumps(card_record() | {"engine": "naive"}))
    with pytest.raises(RecordError, match=r"b\.json: its digest is .* it was changed later"):
        rows()
