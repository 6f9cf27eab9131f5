"""Two sheets of `make bench`, small, as a user starts them. They take a minute that `make test` does not have."""

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
    words = ["--smoke", "--sheet", "spark", "-o", "json", "--file", str(file)]
    done = run_to_end([sys.executable, "-m", "benchmarks.run", *words], LIMIT_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    paths = ["batch read", "batch read, ordinary pulls", "streaming read", "batch write"]
    assert [row["path"] for row in figures["spark"]] == paths
    assert all(row["rows_per_second"] > 0 and row["ceiling_rows_per_second"] > 0 for row in figures["spark"])
    assert {row["title"]: row["batch_ms"] > 0 for row in figures["spark_ms"]} == {"tuned": True, "default": True}


def test_java_clients_are_measured_on_our_broker_and_on_apaches(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    words = ["--smoke", "--sheet", "java", "--apache", "4.9.7", "-o", "json", "--file", str(file)]
    done = run_to_end([sys.executable, "-m", "benchmarks.run", *words], LIMIT_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())["java"]
    assert {row["target"] for row in figures} == {"Cosmodrome", "Apache 4.9.7"}
    assert len(figures) == 6
    assert all(row["per_second"] > 0 for row in figures)
