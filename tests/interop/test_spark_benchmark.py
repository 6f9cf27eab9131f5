"""The Spark part of `make bench`, small, as a user starts it. It takes a minute that `make test` does not have."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.bounded import run_to_end

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 500


def test_the_benchmark_measures_every_path(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    words = ["--smoke", "--only", "spark", "-o", "json", "--file", str(file)]
    done = run_to_end([sys.executable, "-m", "benchmarks.run", *words], LIMIT_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    paths = ["batch read", "batch read, ordinary pulls", "streaming read", "batch write"]
    assert [row["path"] for row in figures["spark"]] == paths
    assert all(row["rows_per_second"] > 0 and row["ceiling_rows_per_second"] > 0 for row in figures["spark"])
    assert {row["title"]: row["batch_ms"] > 0 for row in figures["spark_ms"]} == {"tuned": True, "default": True}
