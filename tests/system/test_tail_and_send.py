"""`tail` and `send` as tools of a pipe: formats, filters, start times, many lines."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

import cosmodrome.testing
from cosmodrome import Message
from cosmodrome.cli.main import main
from cosmodrome.testing.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cosmodrome.testing.cluster() as running:
        yield running


def typed(cluster: Cluster, *words: str, code: int = 0, stdin: str | None = None) -> Result:
    done = CliRunner().invoke(main, [*words, "-n", cluster.namesrv], input=stdin)
    assert done.exit_code == code, done.output
    return done


def test_each_line_of_standard_input_is_a_message_with_its_key(cluster: Cluster) -> None:
    cluster.create_topic("lines", queues=1)
    text = "a:first\nb:second\n\nthird\n"
    done = typed(cluster, "send", "lines", "-", "--lines", "-K", ":", "--header", "shop=x", stdin=text)
    assert done.output.startswith("3 messages sent, 0 failed, in ")
    shown = typed(cluster, "tail", "lines", "--from", "earliest", "--limit", "3", "-f", r"%k=%s %{shop}\n").output
    assert sorted(shown.splitlines()) == ["=third x", "a=first x", "b=second x"]


def test_a_rate_is_kept_and_a_line_that_fails_is_named(cluster: Cluster) -> None:
    cluster.create_topic("rated", queues=1)
    began = time.monotonic()
    typed(cluster, "send", "rated", "-", "--lines", "--rate", "20", stdin="1\n2\n3\n4\n5\n")
    assert time.monotonic() - began >= 0.2
    done = typed(cluster, "send", "rated", "-", "--lines", stdin="x" * 5_000_000 + "\nsmall\n", code=1)
    assert "message 1: " in done.stderr
    assert "1 messages sent, 1 failed" in done.stdout


def test_a_tail_begins_at_a_time_and_shows_what_was_asked_for(cluster: Cluster) -> None:
    cluster.create_topic("timed", queues=2)
    with cluster.producer() as producer:
        producer.send(Message("timed", b"old", keys="k"))
        cluster.advance(hours=1)
        results = [producer.send(Message("timed", b"new %d" % number, keys=f"k{number}")) for number in range(4)]
    moment = cluster.clock.now_ms() / 1_000 - 600
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    shown = typed(cluster, "tail", "timed", "--from", text, "--limit", "4", "-f", r"%s\n").output
    assert sorted(shown.splitlines()) == ["new 0", "new 1", "new 2", "new 3"]
    only = typed(cluster, "tail", "timed", "--from", "earliest", "--key", "k2", "--limit", "1", "-f", r"%s\n").output
    assert only == "new 2\n"
    queue = results[0].queue
    place = f"{queue.broker_name}/{queue.queue_id}"
    ids = typed(cluster, "tail", "timed", "--from", text, "--queue", place, "--limit", "1", "-f", r"%b/%p\n").output
    assert ids == f"{place}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("send", "t", "body", "--lines"), "give - as BODY"),
        (("send", "t", "body", "--rate", "5"), "are for --lines"),
        (("tail", "t", "-f", "%z"), "%z is unknown"),
        (("tail", "t", "-f", "%s", "-o", "json"), "not both"),
        (("tail", "t", "--from", "yesterday"), "write a time such as"),
    ],
)
def test_mistakes_are_usage_errors(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, [*words, "-n", "127.0.0.1:1"])
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_the_directives_are_listed() -> None:
    assert "%{NAME}  the property NAME" in CliRunner().invoke(main, ["tail", "t", "-f", "help"]).output
