"""Whatever replicas report and whenever they leave: what is called safe is on enough of them, and each waiter is woken
once, in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cosmodrome.replication.progress import Progress, Woken
from cosmodrome.store.message import Durability

TIMEOUT_MS = 50
MAX_GAP = 300

steps = st.integers(0, 120)


class ProgressMachine(RuleBasedStateMachine):
    """Slaves with one disk each, which may have several connections, of which all but the newest are dead."""

    @initialize(copies=st.integers(1, 4), hosts=st.sampled_from(["one", "many"]))
    def begin(self, copies: int, hosts: str) -> None:
        self.copies = copies
        self.hosts = hosts
        self.progress = Progress[int](copies, MAX_GAP, TIMEOUT_MS)
        self.now_ms = 0
        self.end = 0
        self.disks = [0, 0, 0, 0]  # by slave, the most it ever had
        self.links: dict[int, int] = {}  # by connection, its slave
        self.alive: dict[int, int] = {}  # by slave, its newest connection
        self.late: dict[int, list[int]] = {}  # by connection, reports that are under way
        self.made = 0
        self.asked: dict[int, tuple[int, int]] = {}  # by waiter that waits, its end and when it asked
        self.waiters = 0

    def woken(self, woken: Woken[int]) -> None:
        for waiter, outcome in woken:
            end, asked_ms = self.asked.pop(waiter)  # KeyError: woken twice, or never asked
            if outcome is Durability.OK:
                self.check_safe(end)
            elif outcome is Durability.FLUSH_SLAVE_TIMEOUT:
                assert self.now_ms >= asked_ms + TIMEOUT_MS
            else:
                assert outcome is Durability.SLAVE_NOT_AVAILABLE
                assert self.progress.in_sync < self.copies

    def check_safe(self, end: int) -> None:
        assert 1 + sum(disk >= end for disk in self.disks) >= self.copies

    @rule(grown=steps)
    def append(self, grown: int) -> None:
        self.end += grown
        self.progress.advance(self.end)

    @rule(grown=steps, back=st.integers(0, 30))
    def ask(self, grown: int, back: int) -> None:
        """Nearly always for the end, sometimes for an earlier place."""
        self.append(grown)
        self.waiters += 1
        end = max(self.end - back, 0)
        enough = self.progress.in_sync >= self.copies
        outcome = self.progress.ask(self.waiters, end, self.now_ms)
        if outcome is None:
            assert enough
            self.asked[self.waiters] = end, self.now_ms
        elif outcome is Durability.OK:
            self.check_safe(end)
        else:
            assert outcome is Durability.SLAVE_NOT_AVAILABLE
            assert not enough

    @rule(slave=st.integers(0, 3), grown=steps)
    def connect(self, slave: int, grown: int) -> None:
        """A slave that comes back has closed its old connection, which the master may not know."""
        self.made += 1
        self.disks[slave] = min(self.disks[slave] + grown, self.end)
        self.links[self.made] = slave
        self.late[self.made] = []
        self.alive[slave] = self.made
        host = "host" if self.hosts == "one" else f"host-{slave}"
        self.woken(self.progress.join(self.made, self.disks[slave], host))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), grown=steps, is_late=st.booleans())
    def report(self, data: st.DataObject, grown: int, is_late: bool) -> None:
        slave = data.draw(st.sampled_from(sorted(self.alive)))
        link = self.alive[slave]
        self.disks[slave] = min(self.disks[slave] + grown, self.end)
        self.late[link].append(self.disks[slave])
        if not is_late:
            self.arrive(link)

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        self.arrive(data.draw(st.sampled_from(sorted(self.links))))

    def arrive(self, link: int) -> None:
        late, self.late[link] = self.late[link], []
        for offset in late:
            self.woken(self.progress.report(link, offset))

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def report_nonsense(self, data: st.DataObject) -> None:
        """Beyond the log's end, by a slave that has all of it (rocketmq#1155)."""
        full = [link for slave, link in self.alive.items() if self.disks[slave] == self.end]
        if full:
            link = data.draw(st.sampled_from(sorted(full)))
            self.woken(self.progress.report(link, self.end + 1_000_000))
            assert self.progress.reported(link) == self.end

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(self.links)))
        slave = self.links.pop(link)
        del self.late[link]
        if self.alive.get(slave) == link:
            del self.alive[slave]
        self.woken(self.progress.leave(link))
        self.woken(self.progress.leave(link))  # of no effect
        if self.progress.in_sync < self.copies:
            assert not self.asked

    @rule(ms=st.integers(0, 80))
    def pass_time(self, ms: int) -> None:
        for _ in range(ms):
            self.now_ms += 1
            self.woken(self.progress.expire(self.now_ms))
            overdue = [end for end, asked_ms in self.asked.values() if asked_ms + TIMEOUT_MS <= self.now_ms]
            assert not overdue

    @invariant()
    def nobody_is_forgotten(self) -> None:
        if not hasattr(self, "progress"):
            return
        assert self.progress.waiting == len(self.asked)
        assert self.progress.safe <= self.end
        self.check_safe(self.progress.safe)
        if self.asked:
            first_ms = min(asked_ms for _, asked_ms in self.asked.values())
            assert self.progress.deadline_ms == first_ms + TIMEOUT_MS
        else:
            assert self.progress.deadline_ms is None


TestProgress = ProgressMachine.TestCase


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(0, 2_000))
def test_a_report_wakes_those_whose_end_it_reaches_and_no_other(sizes: list[int], reported: int) -> None:
    progress = Progress[int](2, 10_000, TIMEOUT_MS)
    progress.join("slave", 0)
    end, ends = 0, []
    for size in sizes:
        end += size
        ends.append(end)
        assert progress.ask(end, end, 0) is None
    woken = progress.report("slave", reported)
    assert woken == [(end, Durability.OK) for end in ends if end <= reported]


@pytest.mark.parametrize("gap", [MAX_GAP, MAX_GAP + 1])
def test_a_slave_that_is_too_far_behind_does_not_count(gap: int) -> None:
    progress = Progress[str](2, MAX_GAP, TIMEOUT_MS, end=1_000)
    progress.join("slave", 1_000)
    outcome = progress.ask("waiter", 1_000 + gap, 0)
    assert outcome is (None if gap == MAX_GAP else Durability.SLAVE_NOT_AVAILABLE)
    assert progress.in_sync == (2 if gap == MAX_GAP else 1)


def test_the_slave_that_comes_back_is_not_two_slaves() -> None:
    progress = Progress[str](3, MAX_GAP, TIMEOUT_MS, end=100)
    progress.join("old", 100, "host")
    progress.join("new", 100, "host")
    progress.report("old", 100)  # was under way when it was closed
    assert progress.safe == 0
    assert progress.ask("waiter", 120, 0) is None
    progress.report("new", 120)
    assert progress.report("old", 120) == [("waiter", Durability.OK)]  # it was alive after all: that was sent later
