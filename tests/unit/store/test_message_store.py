"""The door: what goes in comes out, and every way a read can end."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.config import KIB, StoreConfig
from cosmodrome.errors import InvalidParameter, MessageIllegal, ServiceNotAvailable, StoreError
from cosmodrome.store import GetStatus, MessageStore
from cosmodrome.store.queue_reader import MAX_PULL_BYTES
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.properties import decode, encode
from cosmodrome.wire.record import SysFlag, pack_host
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store, records


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return open_store(tmp_path)


def test_messages_come_back_in_order_queue_by_queue(store: MessageStore) -> None:
    for number in range(50):
        appended = store.append(message(queue_id=number % 3, body=b"%d" % number))
        assert appended.queue_offset == number // 3
    for queue_id in range(3):
        assert bodies(store, queue_id=queue_id) == [b"%d" % number for number in range(queue_id, 50, 3)]
    assert (store.messages_put, store.bytes_put) == (50, store.max_physical_offset)


def test_a_record_carries_everything_that_was_stored(store: MessageStore) -> None:
    sent = dataclasses.replace(message(TAGS="paid"), reconsume_times=2, prepared_transaction_offset=99)
    appended = store.append(sent)
    (record,) = records(store.read("orders", 0, 0, 1).views)
    assert (record.topic, record.body, record.properties, record.flag) == ("orders", b"body", "TAGS\x01paid\x02", 7)
    assert (record.born_host, record.born_port, record.store_host, record.store_port) == (
        "192.0.2.7", 51234, "127.0.0.1", 10911,
    )  # fmt: skip
    assert (record.reconsume_times, record.prepared_transaction_offset) == (2, 99)
    assert record.offset_msg_id == appended.msg_id


def test_ipv6_hosts_and_long_retry_topics_are_kept(store: MessageStore) -> None:
    topic = "%RETRY%" + "g" * 200
    host = pack_host("2001:db8::1", 1)
    store.append(dataclasses.replace(message(topic), born_host=host, store_host=host))
    (record,) = records(store.read(topic, 0, 0, 1).views)
    assert (record.topic, record.born_host, record.sys_flag) == (topic, "2001:db8::1", 0x30)


def test_records_side_by_side_are_one_slice(store: MessageStore) -> None:
    for _ in range(5):
        store.append(message())
    store.append(message(queue_id=1))
    store.append(message())
    assert len(store.read("orders", 0, 0, 5).views) == 1
    result = store.read("orders", 0, 0, 32)
    assert (result.count, result.next_offset) == (6, 6)
    assert result.size == sum(map(len, result.views))


def test_a_read_copies_nothing(store: MessageStore) -> None:
    for number in range(40):
        store.append(message(queue_id=number // 20 * (number % 2), TAGS="t"))
    log = store._log.files[0].map
    for codes in (None, frozenset({java_hash("t")})):
        for offset in (0, 10, 20):
            assert {id(view.obj) for view in store.read("orders", 0, offset, 32, codes=codes).views} == {id(log)}


@pytest.mark.parametrize("max_bytes", [100, 5_000, 40_000, MAX_PULL_BYTES])
@pytest.mark.parametrize("max_count", [-1, 1, 2, 7, 32, 1_000])
def test_a_read_without_a_filter_brings_what_one_brings_whose_filter_fits_all(
    store: MessageStore, max_count: int, max_bytes: int
) -> None:
    for number in range(150):  # over several files of the log and of the queue, alone and among others
        store.append(message(queue_id=number % 5 // 4 if number > 60 else 0, body=b"%d" % number * 400, TAGS="t"))
    for offset in range(store.max_offset("orders", 0)):
        plain = store.read("orders", 0, offset, max_count, max_bytes)
        filtered = store.read("orders", 0, offset, max_count, max_bytes, frozenset({java_hash("t")}))
        assert b"".join(plain.views) == b"".join(filtered.views)
        assert dataclasses.replace(plain, views=()) == dataclasses.replace(filtered, views=())


# Every status of a read


def test_a_queue_that_never_was(store: MessageStore) -> None:
    result = store.read("orders", 0, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_a_queue_without_messages(store: MessageStore) -> None:
    store.append(message(sys_flag=SysFlag.PREPARED))
    result = store.read("orders", 0, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 0),
    ],
)
def test_offsets_around_the_ends(store: MessageStore, offset: int, status: GetStatus, next_offset: int) -> None:
    for _ in range(3):
        store.append(message())
    result = store.read("orders", 0, offset, 32)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 3)


@pytest.mark.parametrize("end", [None, kill, crash])
def test_an_offset_behind_the_end_leads_to_what_its_reader_has_not_seen(
    tmp_path: Path, end: Callable[[MessageStore], None] | None
) -> None:
    """As after a power cut that took messages 5 to 8, which the reader had: 5 and 6 are new ones now."""
    store = open_store(tmp_path)
    for _ in range(5):
        store.append(message(body=b"x" * 30_000))
    (end or MessageStore.close)(store)
    (tmp_path / "commitlog" / "00000000000000000000").unlink()  # as retention does
    store = open_store(tmp_path)
    assert store.min_offset("orders", 0) == 2
    assert store.read("orders", 0, 9, 32).next_offset == 5
    for _ in range(2):
        store.append(message(body=b"new"))
    result = store.read("orders", 0, 9, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 5)
    assert [record.body for record in records(store.read("orders", 0, 5, 32).views)] == [b"new", b"new"]


def test_a_reader_of_a_topic_that_was_made_anew_gets_all_of_it(store: MessageStore) -> None:
    for _ in range(3):
        store.append(message())
    store.delete_topic("orders")
    store.append(message(body=b"new"))
    result = store.read("orders", 0, 3, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 0)


def test_a_read_ends_with_its_queue_file(store: MessageStore) -> None:
    for _ in range(110):
        store.append(message())
    assert store.read("orders", 0, 90, 32).next_offset == 100
    assert store.read("orders", 0, 100, 32).next_offset == 110


def test_messages_whose_log_file_is_gone_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(5):
        store.append(message(body=b"%d" % number + b"x" * 30_000))
    store.close()
    (tmp_path / "commitlog" / "00000000000000000000").unlink()

    store = open_store(tmp_path)
    assert store.min_physical_offset == SMALL.mapped_file_size_commit_log
    assert store.min_offset("orders", 0) == 2
    assert store.read("orders", 0, 1, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert [body[:1] for body in bodies(store)] == [b"2", b"3", b"4"]
    # Retention may remove a file between the look at min_offset and the read.
    store._queues.queue("orders", 0).min_offset = 0
    result = store.read("orders", 0, 0, 32)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 3, 5)
    store._log.files.pop(0)
    assert store.read("orders", 0, 0, 32).count == 1


def test_a_read_that_finds_only_removed_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message(body=b"x" * 40_000))
    store.append(message("other", body=b"x" * 40_000))
    store._log.files.pop(0)
    assert store.read("orders", 0, 0, 32).status is GetStatus.MESSAGE_WAS_REMOVING


# Limits and filters


def test_at_most_thirty_two_messages_at_once(store: MessageStore) -> None:
    for _ in range(40):
        store.append(message())
    assert store.read("orders", 0, 0, 100).count == 32
    assert store.read("orders", 0, 0, 5).count == 5


def test_bytes_are_limited_but_the_first_message_always_comes(store: MessageStore) -> None:
    size = store.append(message(body=b"x" * 1000)).size
    for _ in range(9):
        store.append(message(body=b"x" * 1000))
    assert store.read("orders", 0, 0, 32, 3 * size).count == 3
    assert store.read("orders", 0, 0, 32, 3 * size - 1).count == 2
    assert store.read("orders", 0, 0, 32, 1).count == 1


def test_what_lies_far_back_comes_in_small_portions(tmp_path: Path) -> None:
    store = open_store(tmp_path, dataclasses.replace(SMALL, access_message_in_memory_max_ratio=0))
    for _ in range(20):
        store.append(message())
    result = store.read("orders", 0, 0, 32)
    assert (result.count, result.slow) == (8, True)


def test_only_messages_with_a_wanted_tag_come(store: MessageStore) -> None:
    for number in range(30):
        store.append(message(body=b"%d" % number, TAGS="even" if number % 2 == 0 else "odd"))
    result = store.read("orders", 0, 0, 4, codes=frozenset({java_hash("odd")}))
    assert [record.body for record in records(result.views)] == [b"1", b"3", b"5", b"7"]
    assert result.next_offset == 8


def test_a_read_without_a_match_says_how_far_it_looked(tmp_path: Path) -> None:
    store = open_store(tmp_path, dataclasses.replace(SMALL, mapped_file_size_consume_queue=20 * 1000))
    for _ in range(900):
        store.append(message(TAGS="a"))
    result = store.read("orders", 0, 0, 32, codes=frozenset({java_hash("b")}))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)


# Batches


def items(count: int, size: int = 10) -> list[BatchItem]:
    return [BatchItem(n, b"%d" % n * size, encode({"TAGS": f"t{n}", "UNIQ_KEY": f"u{n}"})) for n in range(count)]


def test_a_batch_is_what_its_messages_one_by_one_would_be(tmp_path: Path) -> None:
    one, many = open_store(tmp_path / "one"), open_store(tmp_path / "many")
    batch = many.append_batch(message(queue_id=1), items(6))
    singles = []
    for item in items(6):
        sent = dataclasses.replace(message(queue_id=1), body=item.body, properties=item.properties, flag=item.flag)
        singles.append(one.append(sent))
    assert batch.physical_offsets == tuple(single.physical_offset for single in singles)
    assert batch.msg_id == ",".join(single.msg_id for single in singles)
    assert (batch.queue_offset, batch.end, batch.size) == (0, singles[-1].end, singles[-1].end)
    assert (tmp_path / "one/commitlog/00000000000000000000").read_bytes() == (
        tmp_path / "many/commitlog/00000000000000000000"
    ).read_bytes()
    assert many.messages_put == 6


def test_a_batch_moves_to_the_next_file_as_a_whole(store: MessageStore) -> None:
    store.append(message(body=b"x" * 50_000))
    batch = store.append_batch(message(), items(5, 6_000))
    assert batch.physical_offset == SMALL.mapped_file_size_commit_log
    assert store.append(message()).queue_offset == 6
    assert [body[:1] for body in bodies(store)] == [b"x", b"0", b"1", b"2", b"3", b"4", b"b"]


@pytest.mark.parametrize("batch", [[], items(2, 40_000)])
def test_a_batch_that_fits_nowhere_is_illegal(store: MessageStore, batch: list[BatchItem]) -> None:
    with pytest.raises(MessageIllegal):
        store.append_batch(message(), batch)
    assert store.append(message()).queue_offset == 0


# Refusals


@pytest.mark.parametrize(
    "illegal",
    [
        message(body=b"x" * (SMALL.max_message_size + 1)),
        message(body=b"x" * SMALL.mapped_file_size_commit_log),
        message(big="x" * 32_768),
        message(lone="\ud800"),
    ],
)
def test_illegal_messages_leave_no_trace(store: MessageStore, illegal: object) -> None:
    with pytest.raises(MessageIllegal):
        store.append(illegal)  # type: ignore[arg-type]
    assert (store.max_offset("orders", 0), store.messages_put) == (0, 0)
    assert store.append(message()).queue_offset == 0


@pytest.mark.parametrize("topic", ["../up", "a/b", "", ".", "x" * 128])
def test_a_name_that_is_no_topic_never_becomes_a_path(store: MessageStore, tmp_path: Path, topic: str) -> None:
    with pytest.raises(InvalidParameter):
        store.append(message(topic))
    with pytest.raises(InvalidParameter):
        store.append(message("orders", -1))
    assert not (tmp_path / "consumequeue").exists()
    assert store.read(topic, 0, 0, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.delete_topic(topic)


def test_a_full_disk_refuses_messages_until_it_has_room(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(message(body=b"kept"))

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", no_space)
    with pytest.raises(ServiceNotAvailable, match="No space left"):
        store.append(message(body=b"x" * 65_400))
    assert bodies(store) == [b"kept"]
    monkeypatch.undo()
    assert store.append(message(body=b"room again")).queue_offset == 1
    assert store.refusal is None
    assert bodies(store) == [b"kept", b"room again"]


def test_a_closed_store_takes_nothing(store: MessageStore) -> None:
    store.close()
    store.close()
    with pytest.raises(ServiceNotAvailable, match="closed"):
        store.append(message())


# Looking up


def test_offsets_by_store_time(tmp_path: Path) -> None:
    clock = FakeClock(1_000)
    store = open_store(tmp_path, clock=clock)
    for time in (1_000, 2_000, 2_000, 3_000):
        clock.step(time - clock.now_ms())
        store.append(message())
    lower = [store.offset_by_time("orders", 0, time) for time in (0, 1_000, 1_001, 2_000, 2_500, 3_000, 3_001)]
    assert lower == [0, 0, 1, 1, 3, 3, 4]
    upper = [store.offset_by_time("orders", 0, time, upper=True) for time in (0, 1_000, 1_999, 2_000, 3_000, 9_000)]
    assert upper == [0, 0, 0, 2, 3, 3]
    assert store.earliest_store_time("orders", 0) == 1_000
    assert store.earliest_store_time("orders", 1) == -1
    assert store.offset_by_time("orders", 1, 0) == 0


def test_messages_are_found_by_key_and_by_unique_id(tmp_path: Path) -> None:
    clock = FakeClock(10_000)
    store = open_store(tmp_path, clock=clock)
    places = []
    for number in range(60):  # more keys than one index file holds
        clock._steady_ms += 500
        places.append(store.append(message(body=b"%d" % number, UNIQ_KEY=f"u{number}", KEYS=f"all k{number % 7}")))

    def find(key: str, limit: int = 64, begin: int = 0, end: int = 2**62, topic: str = "orders") -> list[bytes]:
        return [record.body for record in records(store.find_by_key(topic, key, limit, begin, end))]

    assert find("u5") == [b"5"]
    assert find("k3") == [b"%d" % number for number in range(3, 60, 7)]
    assert find("all", 5) == [b"55", b"56", b"57", b"58", b"59"]
    begin, end = places[10].store_timestamp, places[17].store_timestamp
    assert find("k3", begin=begin, end=end) == [b"10", b"17"]
    assert find("k3", begin=begin + 1, end=end - 1) == []
    assert find("k3", topic="other") == []
    assert store.last_indexed == (places[-1].store_timestamp, places[-1].physical_offset)
    assert len(list((tmp_path / "index").iterdir())) == -(-60 * 3 // (SMALL.max_index_num - 1))


def test_keys_are_not_found_when_the_index_is_off(tmp_path: Path) -> None:
    store = open_store(tmp_path, dataclasses.replace(SMALL, message_index_enable=False))
    store.append(message(UNIQ_KEY="u"))
    assert store.find_by_key("orders", "u", 1, 0, 2**62) == []
    assert store.last_indexed == (0, 0)


def test_a_record_is_found_by_its_place_and_only_there(store: MessageStore) -> None:
    store.append(message())
    appended = store.append(message(body=b"here"))
    view = store.record_at(appended.physical_offset)
    assert view is not None
    assert records([view])[0].body == b"here"
    for elsewhere in (-1, 1, appended.physical_offset + 1, appended.end, 2**40):
        assert store.record_at(elsewhere) is None


def test_transaction_states_in_queue_and_index(store: MessageStore) -> None:
    for flag in (SysFlag.PREPARED, SysFlag.ROLLBACK, SysFlag.COMMIT, 0):
        appended = store.append(message(sys_flag=flag, UNIQ_KEY=f"u{flag}"))
        assert appended.queue_offset == (1 if flag == 0 else 0)
    assert store.max_offset("orders", 0) == 2
    found = [len(store.find_by_key("orders", f"u{flag}", 1, 0, 2**62)) for flag in (4, 12, 8, 0)]
    assert found == [1, 0, 1, 1]


def test_topics_and_queues_are_listed_and_deleted(store: MessageStore, tmp_path: Path) -> None:
    for queue_id in (2, 10, 0):
        store.append(message(queue_id=queue_id))
    store.append(message("bills"))
    assert store.topics() == ["bills", "orders"]
    assert store.queues("orders") == [0, 2, 10]
    store.delete_topic("orders")
    store.delete_topic("orders")
    assert store.topics() == ["bills"]
    assert not (tmp_path / "consumequeue" / "orders").exists()
    assert store.append(message()).queue_offset == 0
    assert bodies(store) == [b"body"]


def test_arrivals_are_told_after_the_messages_can_be_read_and_of_a_batch_once_for_each_tag(tmp_path: Path) -> None:
    seen = []

    def on_arrival(topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        seen.append((topic, queue_id, next_offset, tags_code, told.max_offset(topic, queue_id)))

    told = MessageStore.open(tmp_path, SMALL, FakeClock(), on_arrival)
    told.append(message(queue_id=3, TAGS="t0"))
    told.append_batch(message(), [*items(2), *items(1)])
    told.append(message(sys_flag=SysFlag.PREPARED))
    assert seen == [
        ("orders", 3, 1, java_hash("t0"), 1),
        ("orders", 0, 3, java_hash("t0"), 3),
        ("orders", 0, 2, java_hash("t1"), 3),
    ]


# Opening


def test_a_file_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message())
    store.close()
    path = tmp_path / "commitlog/00000000000000000000"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(StoreError, match=str(path)):
        open_store(tmp_path)
    path.write_bytes(data)
    open_store(tmp_path).close()


def test_a_stray_file_in_the_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "notes.txt").write_text("x" * 10)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        open_store(tmp_path)


def test_many_queues_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmodrome.store.message_store.open_files_limit", lambda: 64)
    config = StoreConfig(mapped_file_size_commit_log=64 * KIB, mapped_file_size_consume_queue=200)
    store = open_store(tmp_path, config)
    for turn, queue_id in itertools.product(range(2), range(1_000)):
        store.append(message(queue_id=queue_id, body=b"%d" % turn))
    assert len(store._queues._open_files) <= 64
    assert all(bodies(store, queue_id=queue_id) == [b"0", b"1"] for queue_id in range(1_000))
    store.close()
    store = open_store(tmp_path, config)
    assert len(store._queues._queues) == 0, "a start looks at no queue"
    assert bodies(store, queue_id=999) == [b"0", b"1"]


def test_a_read_brings_only_what_matches_by_properties(store: MessageStore) -> None:
    for number in range(10):
        store.append(message(body=b"%d" % number, rank=str(number), TAGS="odd" if number % 2 else "even"))
    seen: list[str] = []

    def small(properties: str) -> bool:
        seen.append(properties)
        return int(decode(properties)["rank"]) < 6

    result = store.read("orders", 0, 2, 32, matches=small)
    assert [record.body for record in records(result.views)] == [b"2", b"3", b"4", b"5"]
    assert (result.status, result.next_offset, len(seen)) == (GetStatus.FOUND, 10, 8)
    odd = store.read("orders", 0, 0, 2, codes=frozenset({java_hash("odd")}), matches=small)
    assert ([record.body for record in records(odd.views)], odd.next_offset) == ([b"1", b"3"], 4)
    nothing = store.read("orders", 0, 6, 32, matches=small)
    assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
