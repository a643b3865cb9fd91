"""scripts/docs_from_records.py: the documentation holds what the records say, and a change of either is noticed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from script_module import load_script

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, at work in a folder of its own."""
    module = load_script("docs_from_records.py")
    (tmp_path / "docs" / "records").mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["docs_from_records.py", "--check"])
    return module


def bench_row(competitor: str, batch_size: int, median: float | None, ratio: float | None = None) -> dict[str, Any]:
    return {
        "competitor": competitor,
        "peer": competitor.startswith(("torch", "jax")),
        "batch_size": batch_size,
        "data": "device",
        "precision": "fp32",
        "fault": None if median else "is not installed",
        "us": {"median": median} if median else None,
        "ratio": ratio,
        "versions": {"torch": "2.13.0+cpu", "numpy": "2.4.6"} if competitor.startswith("torch") else {},
    }


def bench_record(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "started": "2026-11-20T12:00:00+00:00",
        "command": "mnist-cuda bench",
        "machine": {"cpu": "A Processor"},
        "settings": {"threads": 2},
        "rows": list(rows),
    }


TWO_BATCHES = bench_record(
    bench_row("cpu", 64, 1000.0, 8.0),
    bench_row("torch eager NCHW", 64, 9000.0, 0.9),
    bench_row("torch eager NHWC", 64, 8000.0, 1.0),
    bench_row("cpu", 256, 2000.0, 12.5),
    bench_row("torch eager NCHW", 256, 25000.0, 1.0),
    bench_row("torch eager NHWC", 256, None),
)


def test_nothing_is_stale(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "ROOT", ROOT)
    assert script.main() == 0


def test_bench_record_becomes_a_table(script: ModuleType) -> None:
    record = bench_record(
        bench_row("cpu", 64, 5904.6, 2.04),
        bench_row("cpu", 256, 20000.0, 3.0),
        bench_row("torch eager NCHW", 64, 12045.0, 1.0),
        bench_row("torch eager NCHW", 256, None),
        bench_row("torch compile", 64, None),
    )
    table = script.render_bench(record, "records/cpu")
    assert table.splitlines()[:4] == [
        "| us an iteration | B=64 | B=256 |",
        "| --- | ---: | ---: |",
        "| cpu, fp32 | **5,905** (2.0x) | **20,000** (3.0x) |",
        "| torch eager NCHW, fp32 | 12,045 | - |",
    ]
    assert "compile" not in table  # nothing was measured
    for part in ("A Processor, 2 threads", "2026-11-20", "torch 2.13.0", "(records/cpu)", "mnist-cuda bench"):
        assert part in table


def test_cells_of_medians(script: ModuleType) -> None:
    assert script.render_us(TWO_BATCHES, "torch", "fp32", "64", "256") == "8,000 | 25,000"
    short = {"precision": "fp32", "engines": {"naive": {"64": 800.6, "256": 2300}}}
    assert script.render_us(short, "naive", "fp32", "256", "64") == "2,300 | 801"
    for record, name, precision, batch in (
        (TWO_BATCHES, "cpu", "fp32", "1024"),
        (short, "tiled", "fp32", "64"),
        (short, "naive", "fp64", "64"),
    ):
        with pytest.raises(KeyError):
            script.render_us(record, name, precision, batch)


def test_speed_up_is_a_range_over_the_cells_and_the_best_variant(script: ModuleType) -> None:
    assert script.render_speed_up(TWO_BATCHES, "cpu", "torch") == "8.0 to 12"


def test_bench_record_becomes_a_chart(script: ModuleType) -> None:
    svg = script.draw_bench(TWO_BATCHES)
    assert svg == script.draw_bench(TWO_BATCHES)
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    for expected in ("64", "256", "8.0x", "12.5x", "PyTorch", "mnist-cuda, cpu", "fp32"):
        assert expected in texts
    assert any("A Processor" in str(text) for text in texts)
    assert any("PyTorch 2.13.0. Measured 2026-11-20." in str(text) for text in texts)


def test_bench_batches_record_becomes_a_chart(script: ModuleType) -> None:
    cells = [("bf16", 1, 20.0), ("bf16", 64, 32.0), ("fp32", 1, 25.0), ("fp32", 64, 40.0)]
    rows = [{"engine": "fused", "precision": p, "batch_size": b, "us": {"median": us}} for p, b, us in cells]
    svg = script.draw_batches({"machine": {"gpu": {"name": "A Card"}, "cpu": "A Processor"}, "rows": rows})
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    for expected in ("bf16", "fp32", "64", "images a step", "Microseconds an image, training by fused on one A Card"):
        assert expected in texts


def test_check_notices_what_is_stale(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme, page = script.ROOT / "README.md", script.ROOT / "docs" / "page.md"
    chart, records = script.ROOT / "docs" / "chart.svg", script.ROOT / "docs" / "records"
    readme.write_text(
        "Before\n<!-- record:run.txt -->\n<!-- /record -->\nBetween\n"
        "| <!-- speed-up:cpu/step.json cpu torch -->old<!-- /speed-up --> | <!-- record:run.txt --><!-- /record --> |\n"
        "| <!-- us:cpu/step.json cpu fp32 256 64 -->0<!-- /us --> |\n"
        "<!-- chart:cpu/step.json docs/chart.svg -->\n<!-- /chart -->\n"
    )
    page.write_text("<!-- record:cpu/step.json -->\n<!-- /record -->\n")
    (records / "run.txt").write_text("98 %\n")
    (records / "cpu").mkdir()
    (records / "cpu" / "step.json").write_text(json.dumps(TWO_BATCHES))

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["docs_from_records.py", *arguments])
        return script.main(), capsys.readouterr().err

    code, words = run("--check")
    assert code == 1
    assert [line.partition(" ")[0] for line in words.splitlines()] == ["docs/chart.svg", "README.md", "docs/page.md"]
    assert run() == (0, "")
    text = readme.read_text()
    assert text.startswith("Before\n<!-- record:run.txt -->\n```\n98 %\n```\n<!-- /record -->\nBetween\n")
    assert "<!-- speed-up:cpu/step.json cpu torch -->8.0 to 12<!-- /speed-up -->" in text
    assert "| <!-- us:cpu/step.json cpu fp32 256 64 -->2,000 | 1,000<!-- /us --> |" in text
    assert "](docs/chart.svg)\n<!-- /chart -->" in text
    assert "[Record](records/cpu)" in page.read_text()
    assert run("--check") == (0, "")
    chart.write_text(chart.read_text().replace("8.0x", "9.0x"))
    assert run("--check") == (1, "docs/chart.svg is stale: run scripts/docs_from_records.py\n")
    run()
    (records / "run.txt").write_text("99 %\n")
    assert run("--check") == (1, "README.md is stale: run scripts/docs_from_records.py\n")


def test_a_sweeps_table_becomes_a_picture_and_what_is_said_of_it(script: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "docs/records/sweep"
    folder.mkdir()
    rows = [f"{seed},0.{9800 + seed % 7}" for seed in range(40)]
    (folder / "seeds.csv").write_text("\n".join(["seed,test_accuracy", *rows, ""]))
    (tmp_path / "README.md").write_text("<!-- chart:sweep/seeds.csv docs/seeds.svg -->\n<!-- /chart -->\n")
    files = script.Documents().files
    lines = files[tmp_path / "README.md"].splitlines()
    assert lines[1:3] == ["![Test accuracy of 40 seeds](docs/seeds.svg)", ""]
    assert lines[3].startswith("Of 10000 test images 98.029 % are right, from 98.00 to 98.06.")
    assert lines[-2:] == ["[Record](docs/records/sweep).", "<!-- /chart -->"]
    svg = ET.fromstring(files[tmp_path / "docs/seeds.svg"])
    assert svg.find(f"{SVG}title").text == "Test accuracy of 40 seeds"  # type: ignore[union-attr]


def test_a_record_of_other_steps_says_so(script: ModuleType) -> None:
    record = bench_record(bench_row("fused, 33 side by side", 64, 9.06, 11.1)) | {"step": "model-step"}
    assert script.render_bench(record, "x").splitlines()[::2][:2] == [
        "| us a model-step | B=64 |",
        "| fused, 33 side by side, fp32 | **9.1** (11.1x) |",
    ]
