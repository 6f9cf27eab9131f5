"""Every benchmark once and tiny, through the command a developer types."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks import hostile
from benchmarks.measure import Figure, Round
from benchmarks.micro import BENCHMARKS, Bench
from benchmarks.results import SheetResult
from benchmarks.run import main
from benchmarks.sheets import PATHS, SHEETS
from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_micro_benchmark(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", smoke=True)
    BENCHMARKS[name](bench)
    assert bench.ns_each > 0


def test_every_workload_runs_and_its_figures_reach_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    results = tmp_path / "results"
    words = ["--smoke", "--no-spark", "--apache", "none", "-o", "json", "--file", str(file), "--results", str(results)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())
    assert [row["workload"] for row in figures["load"]] == [workload.slug for workload in WORKLOADS]
    assert all(row["per_second"] > 0 and row["cpu_us"] > 0 for row in figures["load"])
    assert figures["start"]["resident_mb"] > 0
    assert list(figures["micro_ns"]) == list(BENCHMARKS)
    assert figures["ratios"] == {}, "a ratio needs a broker of Apache's"
    sheet = json.loads((results / "paths.json").read_text())
    assert sheet["cpu"]
    assert sheet["interpreter"]
    chart = ElementTree.parse(results / "paths.svg").getroot()
    shown = {text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert {workload.title for workload in WORKLOADS} < shown


@pytest.mark.parametrize("sheet", ["flush", "latency"])
def test_sheets_with_settings_and_rates_run(sheet: str) -> None:
    result = CliRunner().invoke(main, ["--smoke", "--apache", "none", "--sheet", sheet])
    assert result.exit_code == 0, result.output
    (chosen,) = [one for one in SHEETS if one.name == sheet]
    assert all(workload.title in result.output for workload in chosen.workloads)


def figure(target: str, *rates: float) -> Figure:
    rounds = tuple(Round(rate, 1e6 / rate, 1, 0.5, 0, 100, 200, 300) for rate in rates)
    return Figure(WORKLOADS[0], target, rounds)


def test_a_ratio_compares_medians_with_the_better_of_the_others() -> None:
    ours = figure("Cosmodrome", 100, 300, 150)
    row = [ours, figure("Apache 4.9.7", 50, 60, 1_000), figure("Apache 5.3.3", 100, 100, 90)]
    assert SheetResult(PATHS, [row]).ratios == {"send": 1.5}
    assert ours.spread == pytest.approx(200 / 150)
    assert ours.cpu_us == pytest.approx(1e6 / 150)


def test_a_profile_names_the_functions_of_the_hot_path() -> None:
    result = CliRunner().invoke(main, ["--smoke", "--profile", "send", "--seconds", "2"])
    assert result.exit_code == 0, result.output
    assert "connection.py" in result.output


def test_a_healthy_client_is_measured_beside_a_hostile_peer() -> None:
    result = CliRunner().invoke(hostile.main, ["--seconds", "0.3", "--only", "kv-values"])
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()] == ["none", "kv-values"]
    assert "p99" in result.output
