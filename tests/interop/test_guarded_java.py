"""Apache's Java clients, both generations, at our broker with accounts, behind TLS: one JVM of each for all cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.guards import Account, Certificate, Guard
from interop.java import HOST_OPTIONS, RUN_TIMEOUT_S, JavaHosts, JavaProgram, Line
from interop.ours import CosmodromeBroker, CosmodromeNameServer
from interop.setup import CLIENT_VERSIONS
from tests.system.tls_files import authority, expired

TOPIC, GROUP, COUNT = "orders", "orders-readers", 20
MODES = ("sync", "batch")
ADMIN = Account("rocketmq2", "the-secret-of-all", is_admin=True)
# A topic for each case: a consumer that begins with the first message would get those of others.
TOPICS = {(version, mode): f"{TOPIC}-{n}-{mode}" for n, version in enumerate(CLIENT_VERSIONS) for mode in MODES}
APP = Account("orders-app", "the-secret-of-orders", topics=(TOPIC, *TOPICS.values()), groups=(GROUP, f"{GROUP}-2"))
TRIES_S = 60

Fresh = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A name server and a broker of ours, which let in accounts and TLS alone, and a JVM that trusts them."""

    namesrv: str
    expired: str  # a name server whose certificate has ended
    broker: CosmodromeBroker
    accounts: Path
    java: JavaHosts

    def words(self, account: Account | None = APP, **more: object) -> dict[str, object]:
        keys = {"accessKey": account.access_key, "secretKey": account.secret_key} if account else {}
        return {"namesrv": self.namesrv, "tls": True, "group": "orders-producer", "topic": TOPIC, **keys, **more}

    def run(self, version: str, program: str, words: dict[str, object]) -> JavaProgram:
        with JavaProgram(version, program, words, among=self.java) as running:
            running.wait_line('"done"', RUN_TIMEOUT_S)
            running.finish()
        return running

    def failure(self, version: str, **more: Any) -> str:
        """Return why a producer cannot send one message."""
        with JavaProgram(version, "Produce", self.words(count=1, **more), among=self.java) as running:
            running.wait_line('"done"', RUN_TIMEOUT_S)
        (line,) = running.messages
        assert line["status"] == "FAILED", line
        return str(line["error"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("guarded-java")
    guard = Guard((ADMIN, APP), Certificate.made(home, "server"))
    assert guard.certificate is not None
    trusted = home / "trusted.pem"
    trusted.write_text(guard.certificate.certificate.read_text() + (authority() / "ca.pem").read_text())
    defines = {"tls.test.mode.enable": "false", "tls.client.authServer": "true", "tls.client.trustCertPath": trusted}
    java = JavaHosts((*HOST_OPTIONS, *(f"-D{key}={value}" for key, value in defines.items())))
    ended = {"tls.server.certPath": expired() / "server.pem", "tls.server.keyPath": expired() / "server.key"}
    with_old = CosmodromeNameServer(home / "expired", extra=ended)
    name_server = CosmodromeNameServer(home / "namesrv", guard=guard)
    broker = CosmodromeBroker(name_server.address, home / "broker", guard=guard)
    try:
        yield Guarded(name_server.address, with_old.address, broker, home / "broker" / "conf" / "plain_acl.yml", java)
    finally:
        for child in (java, broker, name_server, with_old):
            child.close() if isinstance(child, JavaHosts) else child.kill()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_an_account_sends_and_consumes_what_is_its_own(guarded: Guarded, version: str, mode: str) -> None:
    group = GROUP if version == CLIENT_VERSIONS[0] else f"{GROUP}-2"
    topic = TOPICS[version, mode]
    sent = guarded.run(version, "Produce", guarded.words(topic=topic, count=COUNT, mode=mode, batchSize=8)).messages
    assert {line["status"] for line in sent} == {"SEND_OK"}
    words = guarded.words(topic=topic, group=group, count=COUNT) | {"from": "first"}
    received = guarded.run(version, "Consume", words).messages
    assert ids(sent) == ids(received)


def ids(lines: Sequence[Line]) -> set[str]:
    return {line["msgId"] for line in lines}


STRANGERS: dict[str, tuple[dict[str, object], str]] = {
    "another topic": ({"topic": "not-for-us"}, "not-for-us"),
    "a wrong secret": ({"account": Account(APP.access_key, "not-the-secret")}, "Check signature failed"),
    "an unknown account": ({"account": Account("stranger", "not-the-secret")}, "No acl config for 'stranger'"),
    "no key": ({"account": None}, "No accessKey is configured"),
    "a signature that was changed": ({"tamper": True}, "Check signature failed"),
    "no TLS": ({"tls": False}, "connect|closed|route|exception"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_strangers_send_nothing_and_are_told_why(guarded: Guarded, version: str, stranger: str) -> None:
    more, words = STRANGERS[stranger]
    error = guarded.failure(version, **more)
    assert any(word in error for word in words.split("|")), error
    assert "secret" not in error


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_server_with_an_expired_certificate_is_not_trusted(guarded: Guarded, version: str) -> None:
    error = guarded.failure(version, namesrv=guarded.expired)
    assert any(word in error for word in ("route", "connect", "exception")), error


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_foreign_group_is_given_nothing(guarded: Guarded, version: str) -> None:
    guarded.run(version, "Produce", guarded.words(count=COUNT))
    words = guarded.words(group="not-our-group", idleMs=4_000) | {"from": "first"}
    assert guarded.run(version, "Consume", words).messages == []


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_accounts_change_while_a_java_client_sends(guarded: Guarded, version: str) -> None:
    before = guarded.accounts.read_text()
    newcomer = Account("newcomer-app", "the-secret-of-newcomers", topics=(TOPIC,))
    added = before + (
        f"- accessKey: {newcomer.access_key}\n  secretKey: {newcomer.secret_key}\n  topicPerms: [{TOPIC}=PUB]\n"
    )
    words = guarded.words(count=3_000, threads=2, quiet=True)
    with JavaProgram(version, "Produce", words, among=guarded.java) as sending:
        guarded.accounts.write_text(added)
        try:
            wait_sent(guarded, version, newcomer)
            sending.wait_line('"done"', RUN_TIMEOUT_S)
            assert sending.state["failed"] == 0
        finally:
            guarded.accounts.write_text(before)


def wait_sent(guarded: Guarded, version: str, account: Account) -> None:
    """Return once the account can send."""
    deadline = time.monotonic() + TRIES_S
    while True:
        (line,) = guarded.run(version, "Produce", guarded.words(account, count=1)).messages
        if line["status"] == "SEND_OK":
            return
        assert time.monotonic() < deadline, line
