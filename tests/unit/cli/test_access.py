"""What commands say of keys and TLS; secrets come from files and the environment."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import BrokerError, ConnectionFailed

SECRET = "12345678"
ENVIRONMENT = {"ROCKETMQ_ACCESS_KEY": "RocketMQ", "ROCKETMQ_SECRET_KEY": SECRET}


@click.command()
@access_options
def show(access: Access) -> None:
    print(access)
    print(access.spark_options)


def invoked(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(show, ["-n", "10.0.0.1:9876", *words])


@pytest.mark.parametrize(
    "text", [f"accessKey: RocketMQ\nsecretKey: '{SECRET}'\n", f"accessKey=RocketMQ\nsecretKey={SECRET}"]
)
def test_keys_from_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    shown, options = invoked("--credentials", str(file)).output.splitlines()
    assert SECRET not in shown
    assert options == str({"nameServer": "10.0.0.1:9876", "accessKey": "RocketMQ", "secretKey": SECRET})


def test_keys_from_the_environment_and_tls() -> None:
    _, options = invoked("--tls", "--tls-ca-file", "ca.pem", "--tls-check", "ca", env=ENVIRONMENT).output.splitlines()
    assert "'secretKey': '12345678', 'tls': 'true', 'tlsCheck': 'ca', 'tlsCaFile': 'ca.pem'" in options


def test_neither() -> None:
    assert invoked().output.splitlines()[1] == "{'nameServer': '10.0.0.1:9876'}"


def test_halves_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: RocketMQ\n")
    assert "tools.yml" in str(invoked("--credentials", str(file)).exception)
    assert "ROCKETMQ_SECRET_KEY" in str(invoked(env={"ROCKETMQ_ACCESS_KEY": "RocketMQ"}).exception)
    assert "for --tls" in invoked("--tls-check", "none").output


def test_who_does_not_answer_is_perhaps_not_running_or_no_name_server() -> None:
    with pytest.raises(click.ClickException, match="Is it running"), hints_at_start():
        raise ConnectionFailed("127.0.0.1:1", "refused")
    with pytest.raises(click.ClickException, match="Is it a name server"), hints_at_start():
        raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 105 not supported", "127.0.0.1:1")
    with pytest.raises(BrokerError), hints_at_start():
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "of another kind", "127.0.0.1:1")


def test_of_warnings_and_the_error_that_follows_them_only_the_error_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> ConnectionFailed:
        logging.getLogger("cosmodrome.client").warning("refused")
        return ConnectionFailed("127.0.0.1:1", "refused")

    with pytest.raises(click.ClickException), hints_at_start():
        raise warned()
    assert not caplog.messages
    with hints_at_start():
        logging.getLogger("cosmodrome.client").warning("refused, but another answers")
    assert caplog.messages == ["refused, but another answers"]
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises(click.ClickException), hints_at_start():  # -v
        raise warned()
    assert caplog.messages == ["refused"]
