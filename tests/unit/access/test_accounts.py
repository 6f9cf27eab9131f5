"""The decision about a request: its signature, its code and what it names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.access.accounts import Account, Accounts, Denial, Judge, permissions_of
from cosmodrome.access.addresses import parse_addresses
from cosmodrome.access.permissions import ADMIN, ANY, PUB, RULES, SIGNED_ADMIN, SUB
from cosmodrome.codes import RequestCode
from cosmodrome.model import MessageQueue, Subscription
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.bodies import ConsumerData, HeartbeatData, LockBatch
from cosmodrome.wire.command import Command

HOST = "10.0.0.9"
APP = Account(
    "orders-app",
    "the-secret-of-orders",
    resources=permissions_of([("orders", ANY), ("audit", PUB), ("secret", 0)], [("readers", SUB)]),
)
ADMINISTRATOR = Account("administrator", "the-secret-of-all", is_admin=True)
JUDGE = Judge(Accounts({one.access_key: one for one in (APP, ADMINISTRATOR)}))


def signed(code: int, fields: dict[str, str], body: bytes = b"", *, by: Account = APP) -> Command:
    command = Command(code, dict(fields), body)
    Credentials(by.access_key, by.secret_key).sign(command)
    return command


def denial(command: Command, judge: Judge = JUDGE, host: str = HOST) -> Denial | None:
    return judge.denial(command, host, is_white=judge.is_white(host))


def send(topic: str, **more: str) -> dict[str, str]:
    return {"a": "p", "b": topic, "e": "0", "i": "KEYS\x01k", **more}


def test_every_request_code_has_a_rule() -> None:
    assert [code.name for code in RequestCode if code not in RULES] == []


def test_the_signature_is_that_of_apache() -> None:
    account = Account("RocketMQ", "12345678", resources={"T": PUB})
    command = Command(
        RequestCode.SEND_MESSAGE,
        {"AccessKey": "RocketMQ", "topic": "T", "Signature": "xjHQAkZ6AeUd/4UKEel5AwANfm0="},
        b"body",
    )
    assert denial(command, Judge(Accounts({"RocketMQ": account}))) is None


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=8),
    st.binary(max_size=80),
    st.text(min_size=1, max_size=90),
)
def test_what_a_client_signs_passes_and_any_change_of_it_does_not(
    fields: dict[str, str], body: bytes, secret: str
) -> None:
    account = Account("somebody", secret)
    judge = Judge(Accounts({"somebody": account}))
    command = signed(RequestCode.GET_BROKER_RUNTIME_INFO, fields, body, by=account)
    assert denial(command, judge) is None
    for changed in (
        Command(command.code, command.fields, body + b"!"),
        Command(command.code, {**command.fields, "zzzz-added": "x"}, body),
        Command(command.code, {**command.fields, "Signature": command.fields["Signature"][::-1]}, body),
        Command(command.code, {**command.fields, "Signature": ""}, body),
        Command(command.code, {**command.fields, "Signature": "ü"}, body),
    ):
        if (changed.fields, changed.body) != (command.fields, command.body):
            found = denial(changed, judge)
            assert found is not None
            assert found.kind == "signature"


@pytest.mark.parametrize("late", ["_UNIQUE_KEY_QUERY", "SecurityToken", "__ZONE_NAME"])
def test_fields_that_some_clients_add_after_they_signed_may_be_left_out(late: str) -> None:
    command = signed(RequestCode.QUERY_MESSAGE, {"topic": "orders"})
    command.fields[late] = "later"
    assert denial(command) is None
    assert denial(signed(RequestCode.QUERY_MESSAGE, {"topic": "orders", late: "signed"})) is None


def test_it_must_be_known_who_asks() -> None:
    fields = send("orders")
    for command, kind in (
        (Command(RequestCode.SEND_MESSAGE_V2, fields), "unsigned"),
        (signed(RequestCode.SEND_MESSAGE_V2, fields, by=replace(APP, access_key="stranger")), "unknown"),
        (signed(RequestCode.SEND_MESSAGE_V2, fields, by=replace(APP, secret_key="wrong-secret")), "signature"),
    ):
        found = denial(command)
        assert found is not None
        assert (found.kind, found.is_authentication) == (kind, True)
        assert "secret" not in repr(found)


HEARTBEAT = HeartbeatData("c", consumers=(ConsumerData("readers", subscriptions=(Subscription("orders"),)),)).encode()
FOREIGN_HEARTBEAT = HeartbeatData("c", consumers=(ConsumerData("others"),)).encode()
LOCK = LockBatch("readers", "c", (MessageQueue("orders", "a", 0),)).encode()
FOREIGN_LOCK = LockBatch("readers", "c", (MessageQueue("others", "a", 0),)).encode()


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "orders"}, b""),
        (RequestCode.SEND_MESSAGE_V2, send("audit"), b""),
        (RequestCode.SEND_BATCH_MESSAGE, send("orders"), b""),
        (RequestCode.SEND_MESSAGE_V2, send("%RETRY%readers"), b""),
        (RequestCode.SEND_MESSAGE_V2, send("RMQ_SYS_TRACE_TOPIC"), b""),
        (RequestCode.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "readers"}, b""),
        (RequestCode.PULL_MESSAGE, {"topic": "%RETRY%readers", "consumerGroup": "readers"}, b""),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%readers_orders", "consumerGroup": "readers"}, b""),
        (RequestCode.GET_MAX_OFFSET, {"topic": "audit"}, b""),
        (RequestCode.HEART_BEAT, {}, HEARTBEAT),
        (RequestCode.HEART_BEAT, {}, HeartbeatData("c", producers=("p",)).encode()),
        (RequestCode.LOCK_BATCH_MQ, {}, LOCK),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}, b""),
        (RequestCode.END_TRANSACTION, {"producerGroup": "p"}, b""),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "others"}, b""),
    ],
)
def test_an_account_may_do_what_it_is_allowed(code: int, fields: dict[str, str], body: bytes) -> None:
    assert denial(signed(code, fields, body)) is None
    assert denial(signed(code, fields, body, by=ADMINISTRATOR)) is None


@pytest.mark.parametrize(
    ("code", "fields", "body", "words"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "others"}, b"", "topic 'others': accessKey=orders-app needs PUB"),
        (RequestCode.SEND_MESSAGE_V2, send("secret"), b"", "topic 'secret'"),
        (RequestCode.SEND_BATCH_MESSAGE, send("others"), b"", "needs PUB"),
        (RequestCode.SEND_MESSAGE_V2, send("%RETRY%others", a="readers"), b"", "group 'others'"),
        (RequestCode.SEND_MESSAGE_V2, send("%DLQ%readers"), b"", "topic '%DLQ%readers'"),
        (RequestCode.PULL_MESSAGE, {"topic": "audit", "consumerGroup": "readers"}, b"", "needs SUB"),
        (RequestCode.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "others"}, b"", "group 'others'"),
        (RequestCode.PULL_MESSAGE, {"topic": "RMQ_SYS_TRACE_TOPIC", "consumerGroup": "readers"}, b"", "needs SUB"),
        (RequestCode.PULL_MESSAGE, {}, b"", "topic ''"),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%others_orders", "consumerGroup": "readers"}, b"", "others_orders"),
        (RequestCode.HEART_BEAT, {}, FOREIGN_HEARTBEAT, "group 'others'"),
        (RequestCode.HEART_BEAT, {}, b"{", "cannot be read"),
        (RequestCode.LOCK_BATCH_MQ, {}, FOREIGN_LOCK, "topic 'others'"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "orders"}, b"", "Need admin permission for request code=17"),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}, b"", "Need admin permission"),
    ],
)
def test_an_account_may_not_do_more(code: int, fields: dict[str, str], body: bytes, words: str) -> None:
    found = denial(signed(code, fields, body))
    assert found is not None
    assert words in found.text
    assert not found.is_authentication


@pytest.mark.parametrize("code", [code for code in RequestCode if RULES[code].is_admin])
def test_what_belongs_to_all_is_for_administrators(code: RequestCode) -> None:
    assert denial(signed(code, {})) is not None
    assert denial(signed(code, {}, by=ADMINISTRATOR)) is None


def test_an_administrator_with_permissions_is_bound_by_them_as_with_apache() -> None:
    bound = replace(ADMINISTRATOR, resources={"orders": PUB})
    judge = Judge(Accounts({bound.access_key: bound}))
    assert denial(signed(RequestCode.SEND_MESSAGE_V2, send("orders"), by=bound), judge) is None
    assert denial(signed(RequestCode.SEND_MESSAGE_V2, send("others"), by=bound), judge) is not None
    assert denial(signed(RequestCode.UPDATE_AND_CREATE_TOPIC, {}, by=bound), judge) is None


def test_defaults_are_for_what_is_not_named() -> None:
    open_account = replace(APP, default_topic=PUB, default_group=SUB)
    judge = Judge(Accounts({APP.access_key: open_account}))
    assert denial(signed(RequestCode.SEND_MESSAGE_V2, send("others")), judge) is None
    assert denial(signed(RequestCode.SEND_MESSAGE_V2, send("secret")), judge) is not None
    assert denial(signed(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "others"}), judge) is None


def test_a_white_address_passes_but_for_what_changes_accounts_and_settings() -> None:
    judge = Judge(Accounts({APP.access_key: APP}, parse_addresses(["10.0.0.*"])))
    assert denial(Command(RequestCode.GET_ALL_TOPIC_CONFIG, {}), judge) is None
    assert denial(Command(RequestCode.GET_ALL_TOPIC_CONFIG, {}), judge, "10.0.1.1") is not None
    for code in (code for code in RequestCode if RULES[code] is SIGNED_ADMIN):
        assert denial(Command(code, {}), judge) is not None
    assert RULES[RequestCode.UPDATE_BROKER_CONFIG] is not ADMIN


def test_the_white_address_of_an_account_stands_for_its_signature() -> None:
    at_home = replace(APP, white=parse_addresses(["10.0.0.9"]))
    judge = Judge(Accounts({APP.access_key: at_home}))
    unsigned = Command(RequestCode.SEND_MESSAGE_V2, send("others", AccessKey=APP.access_key))
    assert denial(unsigned, judge) is None
    assert denial(unsigned, judge, "10.0.0.8") is not None


def test_accounts_show_no_secret() -> None:
    assert "the-secret" not in repr(Accounts({APP.access_key: APP})) + repr(APP.signer) + repr(JUDGE)
