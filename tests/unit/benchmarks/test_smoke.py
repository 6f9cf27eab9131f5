"""Every benchmark once and tiny, through the command a developer types."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import hostile
from benchmarks.micro import BENCHMARKS, Bench
from benchmarks.run import main
from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_micro_benchmark(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", smoke=True)
    BENCHMARKS[name](bench)
    assert bench.ns_each > 0


def test_every_workload_runs_and_its_figures_reach_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(main, ["--smoke", "--no-spark", "--apache", "none", "-o", "json", "--file", str(file)])
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())
    assert [row["workload"] for row in figures["load"]] == [workload.slug for workload in WORKLOADS]
    assert all(row["per_second"] > 0 and row["cpu_us"] > 0 for row in figures["load"])
    assert figures["start"]["resident_mb"] > 0
    assert list(figures["micro_ns"]) == list(BENCHMARKS)


def test_a_profile_names_the_functions_of_the_hot_path() -> None:
    result = CliRunner().invoke(main, ["--smoke", "--profile", "send", "--seconds", "2"])
    assert result.exit_code == 0, result.output
    assert "connection.py" in result.output


def test_a_healthy_client_is_measured_beside_a_hostile_peer() -> None:
    result = CliRunner().invoke(hostile.main, ["--seconds", "0.3", "--only", "kv-values"])
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()] == ["none", "kv-values"]
    assert "p99" in result.output
