"""scripts/readme_tables.py: the README holds what the records say, and a change of either is noticed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, at work in a folder of its own."""
    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "scripts" / "readme_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "docs" / "records").mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["readme_tables.py", "--check"])
    return module


def bench_row(competitor: str, batch_size: int, median: float | None, ratio: float | None = None) -> dict[str, Any]:
    return {
        "competitor": competitor,
        "peer": competitor.startswith("torch"),
        "batch_size": batch_size,
        "data": "device",
        "precision": "fp32",
        "fault": None if median else "is not installed",
        "us": {"median": median} if median else None,
        "ratio": ratio,
        "versions": {"torch": "2.13.0", "numpy": "2.4.6"} if competitor.startswith("torch") else {},
    }


def bench_record(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "started": "2026-11-20T12:00:00+00:00",
        "command": "mnist-cuda bench",
        "machine": {"cpu": "A Processor"},
        "settings": {"threads": 2},
        "rows": list(rows),
    }


def test_the_readme_is_not_stale(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
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
    table = script.render_bench(record, Path("docs/records/cpu/step.json"))
    assert table.splitlines()[:4] == [
        "| us an iteration | B=64 | B=256 |",
        "| --- | ---: | ---: |",
        "| cpu, fp32 | **5,905** (2.0x) | **20,000** (3.0x) |",
        "| torch eager NCHW, fp32 | 12,045 | - |",
    ]
    assert "compile" not in table  # nothing was measured
    for part in ("A Processor, 2 threads", "2026-11-20", "torch 2.13.0", "(docs/records/cpu)", "mnist-cuda bench"):
        assert part in table


def test_check_notices_a_stale_readme(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, records = script.ROOT / "README.md", script.ROOT / "docs" / "records"
    readme.write_text(
        "Before\n<!-- record:run.txt -->\n<!-- /record -->\nBetween\n<!-- record:step.json -->\n<!-- /record -->\n"
    )
    (records / "run.txt").write_text("98 %\n")
    (records / "step.json").write_text(json.dumps(bench_record(bench_row("cpu", 64, 5904.6, 2.04))))
    assert script.main() == 1
    monkeypatch.setattr("sys.argv", ["readme_tables.py"])
    assert script.main() == 0
    text = readme.read_text()
    assert text.startswith("Before\n<!-- record:run.txt -->\n```\n98 %\n```\n<!-- /record -->\nBetween\n")
    assert "5,905" in text
    monkeypatch.setattr("sys.argv", ["readme_tables.py", "--check"])
    assert script.main() == 0
    (records / "run.txt").write_text("99 %\n")
    assert script.main() == 1
