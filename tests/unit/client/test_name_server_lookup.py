"""Name servers that a web page tells of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cosmodrome import Message, Producer, PushConsumer
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.name_server_lookup import LOOKUP_INTERVAL_MS, NameServerLookup
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ConnectionFailed, CosmodromeError
from cosmodrome.net.caller import Caller
from cosmodrome.testing import FakeClock
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, fake_cluster


class Page:
    """What a web server answers, and what it was asked for."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.speaks_http = True
        self.asked: list[str] = []
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.asked.append(self.path)
                if not page.speaks_http:
                    self.wfile.write(b"garbage\r\n\r\n")
                    return
                self.send_response(page.status)
                self.end_headers()
                self.wfile.write(page.text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Tests are silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/rocketmq/nsaddr"


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    thread = threading.Thread(target=page.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield page
    page.server.shutdown()
    page.server.server_close()
    thread.join()


async def test_a_producer_finds_its_name_servers_by_a_page(page: Page) -> None:
    async with fake_cluster(T=1) as cluster:
        page.text = f"{cluster.namesrv}\nsomething else"
        async with Producer("p", page.url) as producer:
            await producer.send(Message("T", b"x"))
            await producer.send(Message("T", b"y"))
        assert page.asked == ["/rocketmq/nsaddr"]


async def test_a_consumer_says_which_name_servers_it_found_and_a_unit_has_its_own_page(page: Page) -> None:
    async with fake_cluster(T=1) as cluster:
        page.text = cluster.namesrv
        consumer = PushConsumer("g", page.url, config=ClientConfig(unit_name="north"))
        consumer.subscribe("T", "*", print)
        async with consumer:
            assert consumer.running_info().properties["PROP_NAMESERVER_ADDR"] == f"{cluster.namesrv};"
        assert page.asked == ["/rocketmq/nsaddr-north?nofix=1"]


async def test_name_servers_may_move_and_a_page_that_fails_changes_nothing(
    page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    clock, caller = FakeClock(), Caller()
    lookup = NameServerLookup(caller, page.url, 1_000)
    page.text = "a:1;b:2"
    await lookup.look_up()
    assert sorted(lookup.addresses) == ["a:1", "b:2"]
    running = asyncio.create_task(lookup.run(clock))
    page.status = 500
    await _until(lambda: "name servers stay as they are" in caplog.text, clock)
    assert sorted(lookup.addresses) == ["a:1", "b:2"]
    page.status, page.text = 200, "c:3"
    await _until(lambda: list(lookup.addresses) == ["c:3"], clock)
    await cancelled([running])
    await caller.close()


class Stumbling(NameServerLookup):
    """Fails once in a way that nobody foresaw."""

    stumbled = False

    async def look_up(self) -> None:
        if not self.stumbled:
            self.stumbled = True
            raise KeyError("unforeseen")
        await super().look_up()


@pytest.mark.parametrize(
    ("kind", "told"),
    [(NameServerLookup, "not proper HTTP (BadStatusLine)"), (Stumbling, "lookup of name servers failed")],
)
async def test_the_lookup_goes_on_whatever_came(
    page: Page, caplog: pytest.LogCaptureFixture, kind: type[NameServerLookup], told: str
) -> None:
    clock, caller = FakeClock(), Caller()
    lookup = kind(caller, page.url, 1_000)
    running = asyncio.create_task(lookup.run(clock))
    page.speaks_http = False
    await _until(lambda: told in caplog.text, clock)
    page.speaks_http, page.text = True, "c:3"
    await _until(lambda: list(lookup.addresses) == ["c:3"], clock)
    await cancelled([running])
    await caller.close()


async def test_a_first_send_says_that_the_page_is_none(page: Page) -> None:
    page.speaks_http = False
    async with Producer("p", page.url) as producer:
        with pytest.raises(ConnectionFailed, match=r"rocketmq/nsaddr.*it tells of no name server.*not proper HTTP"):
            await producer.send(Message("T", b"x"))


async def _until(holds: Callable[[], bool], clock: FakeClock) -> None:
    await asyncio.sleep(0)  # let it go to sleep
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await clock.advance(LOOKUP_INTERVAL_MS)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("text", ["", "no address"])
async def test_a_page_that_names_nobody_is_told_of(page: Page, text: str) -> None:
    page.text = text
    async with Producer("p", page.url) as producer:
        with pytest.raises(CosmodromeError, match=r"rocketmq/nsaddr.*it tells of no name server"):
            await producer.send(Message("T", b"x"))
