"""Faults for the Raft log on disk and for the node around the core; `raft_faults` says what catches them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cosmodrome.mapped_file import MappedFile
from cosmodrome.raft import entry_log
from cosmodrome.raft.entries import HEAD, pack_head
from cosmodrome.raft.entry_files import LogState
from cosmodrome.raft.entry_log import CheckpointJob, EntryLog
from cosmodrome.raft.messages import Entry, EntryKind
from cosmodrome.raft.node import Node
from tests.simulation.raft_files import MemoryFile
from tests.simulation.raft_plants import Patch

FILES = (MappedFile, MemoryFile)


def cut_leaves_old_bytes(patch: Patch) -> None:
    """What was cut off stays behind the end, and follows what is written before it (rocketmq#10666)."""
    for kind in FILES:
        patch.setattr(kind, "zero_tail", lambda self: 0)


def cut_is_not_synced(patch: Patch) -> None:
    """A cut is in memory only when entries are written behind it."""
    for kind in FILES:
        original: Any = kind.zero_tail

        def zero_tail(self: Any, original: Any = original) -> int:
            original(self)
            return 0

        patch.setattr(kind, "zero_tail", zero_tail)


def torn_entry_is_taken(patch: Patch) -> None:
    """An entry has no checksum, so that a head is enough after a power cut."""

    def pack(index: int, term: int, place: int, kind: EntryKind, body: bytes) -> bytes:
        fields = list(HEAD.unpack(pack_head(index, term, place, kind, body)))
        fields[7] = 0
        return HEAD.pack(*fields)

    patch.setattr(entry_log, "pack_head", pack)


def checkpoint_ahead_of_sync(patch: Patch) -> None:
    """A checkpoint speaks of all that was written."""

    def begin(self: EntryLog, commit: int) -> CheckpointJob | None:
        self._synced_index = self.last_index
        return BEGIN_CHECKPOINT(self, commit)

    patch.setattr(EntryLog, "begin_checkpoint", begin)


BEGIN_CHECKPOINT = EntryLog.begin_checkpoint


def checkpoint_forgets_the_members(patch: Patch) -> None:
    """A start that begins at a checkpoint knows no change of the members before it."""
    patch.setattr(EntryLog, "_kept", lambda self, index: ())


def checkpoint_of_what_was_cut(patch: Patch) -> None:
    """A cut leaves a checkpoint that speaks of more."""

    def truncate(self: EntryLog, last_index: int) -> None:
        saved = self.write_state
        self.write_state = lambda state: None  # type: ignore[method-assign]
        TRUNCATE(self, last_index)
        self.write_state = saved  # type: ignore[method-assign]

    patch.setattr(EntryLog, "truncate", truncate)


TRUNCATE = EntryLog.truncate


def restart_syncs_nothing(patch: Patch) -> None:
    """The first sync after a kill covers only what was written since."""

    def recover(self: EntryLog) -> None:
        RECOVER(self)
        self._dirty = []

    patch.setattr(EntryLog, "_recover", recover)


RECOVER = EntryLog._recover


def reset_in_two_steps(patch: Patch) -> None:
    """A new log begins before the old one is known to be over."""

    def write_state(self: EntryLog, state: LogState) -> None:
        if not state.is_reset:
            WRITE_STATE(self, state)

    patch.setattr(EntryLog, "write_state", write_state)


WRITE_STATE = EntryLog.write_state


def saved_commit_is_cut(patch: Patch) -> None:
    """After a start, a member may cut off what it knew to be committed."""

    def truncate(self: EntryLog, last_index: int) -> None:
        state = self._state
        self._state = LogState(state.base, state.synced, state.base.index, state.memberships)
        TRUNCATE(self, last_index)

    patch.setattr(EntryLog, "truncate", truncate)


def lost_tail_is_taken_as_the_end(patch: Patch) -> None:
    """A log that lost what was on disk opens as a shorter one, and its member votes."""

    def recover(self: EntryLog) -> None:
        state = self._state
        self._trust(state)
        self._state = LogState(state.base, state.base.index, state.base.index, ())
        RECOVER(self)

    patch.setattr(EntryLog, "_recover", recover)


def node_acks_before_sync(patch: Patch) -> None:
    """The node reports a sync that has only begun."""

    def maybe_sync(self: Node) -> None:
        if self._to_sync is not None:
            point, self._to_sync = self._to_sync, None
            assert self._loop is not None
            self._in_thread(self.log.begin_sync(point).run)
            done: asyncio.Future[None] = self._loop.create_future()
            done.set_result(None)
            self._loop.call_soon(self._synced, point, done)

    patch.setattr(Node, "_maybe_sync", maybe_sync)


def node_answers_before_the_vote_is_saved(patch: Patch) -> None:
    """The node reports a vote as saved before it is."""

    def maybe_save(self: Node) -> None:
        if self._to_save is not None:
            state, self._to_save = self._to_save, None
            assert self._loop is not None
            self._in_thread(lambda: self._hard_state.save(state))
            done: asyncio.Future[None] = self._loop.create_future()
            done.set_result(None)
            self._loop.call_soon(self._saved, state, done)

    patch.setattr(Node, "_maybe_save", maybe_save)


def place_of_another_file_size(patch: Patch) -> None:
    """A follower writes entries where they fit, not where its leader has them."""

    def append(self: EntryLog, entries: Sequence[Entry]) -> None:
        APPEND(self, list(entries))

    patch.setattr(EntryLog, "append", append)


APPEND = EntryLog.append
