"""Contexts: kept for the user alone, obeyed by every command that reaches a cluster, shown where they are used."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.contexts import contexts_file, load
from cosmodrome.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NAMESRV_ADDR", "COSMODROME_CONTEXT", "ROCKETMQ_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@click.command()
@access_options
def reached(access: Access) -> None:
    print(access.config.namesrv, access.config.tls, access.credentials and access.credentials.access_key)


def context(*words: str) -> Result:
    return CliRunner().invoke(main, ["context", *words])


def ask(*words: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    done = CliRunner(env=env).invoke(reached, words, catch_exceptions=False)
    return done.stdout.strip(), done.stderr.strip()


def test_the_first_context_is_used_and_shown_and_another_can_be(home: Path) -> None:
    assert "it is in use" in context("add", "prod", "-n", "10.0.0.1:9876").output
    assert context("add", "test", "-n", "10.0.0.2:9876").exit_code == 0
    assert ask() == ("10.0.0.1:9876 False None", "context prod: 10.0.0.1:9876")
    assert ask("--context", "test")[0].startswith("10.0.0.2:9876")
    assert context("use", "test").exit_code == 0
    assert ask()[1] == "context test: 10.0.0.2:9876"
    listed = json.loads(context("list", "-o", "json").output)
    assert [(one["name"], one["current"]) for one in listed] == [("prod", False), ("test", True)]
    assert context("remove", "test").exit_code == 0
    assert ask() == ("127.0.0.1:9876 False None", "")


def test_name_servers_that_are_given_win_over_the_context_in_use() -> None:
    context("add", "prod", "-n", "10.0.0.1:9876")
    assert ask("-n", "10.0.0.9:9876") == ("10.0.0.9:9876 False None", "")
    assert ask(env={"NAMESRV_ADDR": "10.0.0.8:9876"}) == ("10.0.0.8:9876 False None", "")


def test_a_context_brings_credentials_and_tls_and_keeps_no_secret(home: Path) -> None:
    keys = home / "tools.yml"
    keys.write_text("accessKey: RocketMQ\nsecretKey: '12345678'\n")
    context("add", "prod", "-n", "10.0.0.1:9876", "--credentials", str(keys), "--tls")
    assert ask()[0] == "10.0.0.1:9876 True RocketMQ"
    file = contexts_file()
    assert "12345678" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_mistakes_are_said() -> None:
    assert "there is no context x; there is none" in str(CliRunner().invoke(reached, ["--context", "x"]).exception)
    assert "is illegal" in context("add", "a b", "-n", "10.0.0.1:9876").output
    assert "is not an address" in context("add", "a", "-n", "nowhere").output
    assert load().by_name == {}
    contexts_file().parent.mkdir()
    contexts_file().write_text("{")
    done = context("list")
    assert (done.exit_code, "correct or remove the file" in done.output) == (1, True)
