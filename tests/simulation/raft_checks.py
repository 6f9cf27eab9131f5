"""What must hold in a Raft group at every step. These checks see all members and their disks at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cosmodrome.raft.core import Raft
from cosmodrome.raft.log import MemoryLog
from cosmodrome.raft.messages import Base, Entry, EntryKind
from cosmodrome.raft.quorum import Membership


class Violation(AssertionError):
    """A promise of Raft that was broken."""


class Checks:
    """The history of one group."""

    def __init__(self, first: Base) -> None:
        self._first = first.index + 1  # the place of committed[0]
        self.committed: list[Entry] = []
        self._commit_terms: list[int] = []  # of the leader that committed each of them
        self._leaders: dict[int, str] = {}
        self._written: dict[tuple[int, int], tuple[int, Entry]] = {}
        self._bodies: set[bytes] = set()
        self.answered = first.index  # the highest index that any client has seen, written or read
        self.acknowledged: dict[bytes, int] = {}
        self.events: Counter[str] = Counter()

    def _at(self, index: int) -> Entry | None:
        place = index - self._first
        return self.committed[place] if 0 <= place < len(self.committed) else None

    @property
    def last_committed(self) -> int:
        return self._first + len(self.committed) - 1

    # --- logs

    def appended(self, entries: Sequence[Entry], prev_term: int) -> None:
        """Log matching: an entry of one index and term is the same everywhere, and so is what comes before it."""
        for entry in entries:
            known = self._written.setdefault((entry.index, entry.term), (prev_term, entry))
            if known != (prev_term, entry):
                raise Violation(f"log matching: {entry} after term {prev_term}, elsewhere {known}")
            prev_term = entry.term

    def cut(self, log: MemoryLog, last_index: int, term: int) -> None:
        """No member cuts off what is committed in its term or an earlier one.

        In a term that is over elsewhere, an entry may go that a later leader commits without this member's copy.
        """
        self.events["cuts"] += 1
        for index in range(max(last_index, log.first_index - 1) + 1, min(log.last_index, self.last_committed) + 1):
            entry = self._at(index)
            if entry is None or log.term_at(index) != entry.term:
                continue
            if self._commit_terms[index - self._first] <= term:
                raise Violation(f"committed entry {index} of term {entry.term} is cut off in term {term}")

    def based(self, base: Base) -> None:
        """A log begins only behind what is committed."""
        self.events["new logs"] += 1
        entry = self._at(base.index)
        if entry is None or entry.term != base.term:
            raise Violation(f"a log begins behind {base}, but committed there is {entry}")

    # --- leaders

    def leads(self, raft: Raft) -> None:
        """Election safety and leader completeness."""
        if self._leaders.setdefault(raft.term, raft.id) != raft.id:
            raise Violation(f"election safety: {raft.id} and {self._leaders[raft.term]} lead in term {raft.term}")
        self.events["elections"] += 1
        place = len(self.committed) - 1
        while place >= 0 and self._commit_terms[place] >= raft.term:
            place -= 1  # committed in a later term; this one was elected before, and has not heard of it
        if place < 0:
            return
        log, entry = raft.state.log, self.committed[place]
        if entry.index > log.last_index or (entry.index >= log.first_index and log.term_at(entry.index) != entry.term):
            raise Violation(f"leader completeness: {raft.id} leads in term {raft.term} without {entry}")

    # --- commits

    def commits(self, raft: Raft, begin: int, end: int, durable: Mapping[str, MemoryLog]) -> None:
        """State machine safety; what is committed first is on the disks of a majority."""
        log = raft.state.log
        for index in range(max(begin, log.first_index), end + 1):
            (entry,) = log.read(index, 0)
            known = self._at(index)
            if known is None:
                self._commit(entry, raft.term)
            elif known != entry:
                raise Violation(f"state machine safety: {raft.id} commits {entry}, others {known}")
            if index == end and known is None:
                self._is_kept(entry, raft.members, durable)

    def _commit(self, entry: Entry, term: int) -> None:
        if entry.index != self.last_committed + 1:
            raise Violation(f"{entry} is committed before {self.last_committed + 1}")
        if entry.kind == EntryKind.NORMAL:
            if entry.data in self._bodies:
                raise Violation(f"{entry.data!r} is committed twice, the second time as {entry}")
            self._bodies.add(entry.data)
        elif entry.kind == EntryKind.MEMBERS:
            self.events["changes of the members"] += 1
        self.committed.append(entry)
        self._commit_terms.append(term)

    def _is_kept(self, entry: Entry, members: Membership, durable: Mapping[str, MemoryLog]) -> None:
        having = [member for member in members.voters if _has(durable[member], entry)]
        if not members.is_majority(having):
            raise Violation(f"{entry} is committed, but on disk at {having} only, of {sorted(members.voters)}")

    # --- clients

    def acknowledge(self, body: bytes, index: int) -> None:
        """What a client hears is committed, at the place it was told."""
        entry = self._at(index)
        if entry is None or entry.data != body:
            raise Violation(f"{body!r} is acknowledged at {index}, where {entry} is committed")
        self.acknowledged[body] = index
        self.answered = max(self.answered, index)
        self.events["acknowledged"] += 1

    def read(self, floor: int, index: int) -> None:
        """Linearizable reads: one sees all that anybody had seen before it began."""
        if index < floor or index > self.last_committed:
            raise Violation(f"a read sees {index}; before it began, a client saw {floor}")
        self.answered = max(self.answered, index)
        self.events["reads"] += 1

    def all_kept(self, logs: Iterable[MemoryLog]) -> None:
        """After healing: every log is what was committed."""
        for log in logs:
            for entry in log.entries:
                if self._at(entry.index) not in (None, entry):
                    raise Violation(f"a log has {entry} where {self._at(entry.index)} is committed")
            if log.last_index < self.last_committed:
                raise Violation(f"a log ends at {log.last_index}, committed is {self.last_committed}")


def _has(log: MemoryLog, entry: Entry) -> bool:
    if entry.index < log.first_index:
        return True
    return entry.index <= log.last_index and log.term_at(entry.index) == entry.term
