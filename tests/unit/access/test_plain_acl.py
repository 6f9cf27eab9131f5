"""plain_acl.yml: what it may say, and that a mistake refuses all of it without showing a secret."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.access.files import AccountFiles
from cosmodrome.access.permissions import ANY, PUB, SUB
from cosmodrome.access.plain_acl import parse_plain_acl
from cosmodrome.config import SecurityConfig
from cosmodrome.errors import ConfigError

# The file of Apache's own distribution, in its shape.
APACHE = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB

- accessKey: rocketmq2
  secretKey: "0012345678"
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""
ONE = "accounts:\n- accessKey: somebody\n  secretKey: hunter2-hunter2\n"


def test_apaches_own_file_is_read() -> None:
    accounts = parse_plain_acl(APACHE, "plain_acl.yml")
    first, second = accounts.by_key.values()
    assert (first.access_key, first.secret_key, first.is_admin) == ("RocketMQ", "12345678", False)
    assert (first.default_topic, first.default_group) == (0, SUB)
    assert first.resources == {
        "topicA": 0,
        "topicB": ANY,
        "topicC": SUB,
        "%RETRY%groupA": 0,
        "%RETRY%groupB": ANY,
    }
    assert (second.secret_key, second.is_admin, "192.168.1.7" in second.white) == ("0012345678", True, True)
    assert ("192.168.0.7" in accounts.white, "192.168.1.7" in accounts.white) == (True, False)


def test_the_short_form_of_lists_and_the_version_that_mqadmin_writes_are_read() -> None:
    text = (
        "{dataVersion: [{counter: 1, timestamp: 1700000000000}], globalWhiteRemoteAddresses: ['*'], accounts: "
        "[{accessKey: somebody, secretKey: hunter2-hunter2, topicPerms: [a=PUB]}]}"
    )
    accounts = parse_plain_acl(text, "x")
    assert accounts.white.has_all
    assert accounts.by_key["somebody"].resources == {"a": PUB}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("accounts: 7", "accounts is no list"),
        ("just text", "the file is no list of names and values"),
        ("accounts:\n- accessKey: somebody\n   secretKey: hunter2-hunter2", "line 3: it is no YAML"),
        (ONE + ONE, "line 4: the name 'accounts' is given twice"),
        (ONE + ONE.partition("\n")[2], "accessKey 'somebody' is given twice"),
        (ONE + "  admin: maybe", r"account 1 \('somebody'\): admin is true or false, not 'maybe'"),
        (ONE + "  topicPerms:\n  - a:PUB", "topicPerms is no text|'a:PUB' is no permission"),
        (ONE + "  topicPerms:\n  - a=PUBB", "'PUBB' is no permission; write one of DENY, PUB, SUB"),
        (ONE + "  whiteRemoteAddress: 10.0.0", "'10.0.0' is no white address"),
        (ONE + "  namespacePerms: []", "'namespacePerms' is not supported"),
        (ONE + "  topicPerm: []", "'topicPerm' is not supported"),
        ("accounts:\n- accessKey: short\n  secretKey: hunter2-hunter2", "accessKey needs at least 7 characters"),
        ("accounts:\n- accessKey: somebody\n  secretKey: hunter", "secretKey needs at least 7 characters"),
        ("accounts: &a\n- *a", "instead of an alias"),
        ("[" * 5_000, "no YAML|nested too deeply"),
        ("\x00", "characters that no text has"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_without_a_secret(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        parse_plain_acl(text, "plain_acl.yml")
    assert str(refused.value).startswith("plain_acl.yml: ")
    assert "hunter2" not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_accounts_or_an_error_of_ours(text: str) -> None:
    try:
        parse_plain_acl(text, "x")
    except ConfigError:
        pass


@given(st.integers(0, len(APACHE) - 1))
def test_a_file_that_is_cut_off_is_refused_or_has_fewer_rights(end: int) -> None:
    whole = parse_plain_acl(APACHE, "x")
    try:
        part = parse_plain_acl(APACHE[:end], "x")
    except ConfigError:
        return
    for key, account in part.by_key.items():
        assert not account.is_admin or whole.by_key[key].is_admin


def test_without_a_reader_of_yaml_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_yaml(name: str, *more: Any, **named: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.delitem(sys.modules, "yaml", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_yaml)
    with pytest.raises(ConfigError, match=r"pip install 'cosmodrome\[acl\]'"):
        parse_plain_acl(ONE, "x")


# --- where the files are


def config(**given: str) -> SecurityConfig:
    return SecurityConfig(acl_enable=True, **given)  # type: ignore[arg-type]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def test_accounts_are_found_as_apache_finds_them(tmp_path: Path) -> None:
    write(tmp_path / "conf" / "plain_acl.yml", ONE)
    write(tmp_path / "conf" / "acl" / "more" / "team.yaml", ONE.replace("somebody", "another"))
    write(tmp_path / "conf" / "acl" / "tools.yml", "accessKey: x")
    write(tmp_path / "conf" / "acl" / "notes.txt", "x")
    by_key = AccountFiles(config(rocketmq_home=str(tmp_path)), {}).read()
    by_environment = AccountFiles(config(), {"ROCKETMQ_HOME": str(tmp_path)}).read()
    assert set(by_key.by_key) == set(by_environment.by_key) == {"somebody", "another"}
    write(tmp_path / "mine.yml", ONE.replace("somebody", "elsewhere"))
    assert set(AccountFiles(config(acl_file=str(tmp_path / "mine.yml")), {}).read().by_key) == {"elsewhere"}


def test_a_start_without_accounts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set aclFile to a file of them, or rocketmqHome"):
        AccountFiles(config(), {})
    with pytest.raises(ConfigError, match=r"there is no .*plain_acl\.yml: make it, or set aclFile"):
        AccountFiles(config(rocketmq_home=str(tmp_path)), {}).read()
    write(tmp_path / "conf" / "plain_acl.yml", ONE)
    write(tmp_path / "conf" / "acl" / "twice.yml", ONE)
    with pytest.raises(ConfigError, match=r"accessKey 'somebody' is in .*twice\.yml, too"):
        AccountFiles(config(rocketmq_home=str(tmp_path)), {}).read()


def test_a_changed_file_is_read_once_it_rests(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    files = AccountFiles(config(acl_file=str(path)), {})
    files.read()
    assert files.read_again() is None
    write(path, ONE + ONE.partition("\n")[2].replace("somebody", "another"))
    assert files.read_again() is None  # perhaps it is still being written
    again = files.read_again()
    assert again is not None
    assert set(again.by_key) == {"somebody", "another"}
    assert files.read_again() is None
    write(path, "accounts: broken")
    assert files.read_again() is None
    with pytest.raises(ConfigError, match="accounts is no list"):
        files.read_again()
    assert files.read_again() is None  # told once
    path.unlink()
    assert files.read_again() is None
    with pytest.raises(ConfigError, match="there is no"):
        files.read_again()
