"""Faults planted into the Raft core, its log and its node, one for each hazard, and what catches them.

`python -m tests.simulation.raft_faults` plants each and prints the table of `raft_faults.md`; with a number it looks at
so many seeds of the simulation for each fault. A fault that neither the simulation nor a directed test shows is a
missing test, and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import raft_log_plants as log_plants
from tests.simulation import raft_plants as plants
from tests.simulation.raft_lives import live_and_heal
from tests.simulation.raft_plants import Patch
from tests.unit.raft import test_commit as commit_tests
from tests.unit.raft import test_election as election_tests
from tests.unit.raft import test_entry_log as log_tests
from tests.unit.raft import test_members as member_tests
from tests.unit.raft import test_node as node_tests
from tests.unit.raft import test_progress as progress_tests
from tests.unit.raft import test_reads as read_tests
from tests.unit.raft import test_replication as replication_tests
from tests.unit.raft import test_storage as storage_tests
from tests.unit.raft import test_transfer as transfer_tests

up_to_date = election_tests.test_a_vote_needs_a_log_that_is_up_to_date
without_prev = replication_tests.test_a_follower_without_the_entry_before_takes_nothing
refused_change = member_tests.test_a_change_that_cannot_be_made_is_refused

SEEDS = 1_000  # looked at for each fault by the command


def in_a_folder(test: Callable[..., None], **named: object) -> Callable[[], None]:
    """Return a test that runs in a folder of its own."""

    @wraps(test)
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder), **named)

    return run


def on_a_loop(test: Callable[[Path, Patch], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Return a test that runs on an event loop of its own, in a folder of its own."""

    @wraps(test)
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            asyncio.run(test(Path(folder), patch))

    return run


log_power_cuts = in_a_folder(log_tests.test_no_moment_of_a_power_cut_loses_what_was_synced, seed=0)
log_in_memory = in_a_folder(log_tests.test_a_log_on_disk_is_the_log_in_memory, seed=1)
cut_below_checkpoint = log_tests.test_a_log_that_was_cut_below_its_checkpoint_opens_as_it_was_cut
lost_tail = in_a_folder(log_tests.test_a_log_that_lost_what_was_on_disk_does_not_open, lost="tail")


@dataclass(frozen=True)
class Fault:
    """A fault, the directed test for its hazard, and in how many seeds the simulation shows it, if that is soon."""

    plant: Callable[[Patch], None]
    directed: Callable[[], None]
    seeds: int = 0

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", " ")

    @property
    def hazard(self) -> str:
        return (self.plant.__doc__ or "").rstrip(".")


SOON = 300

FAULTS = (
    Fault(plants.vote_not_synced, election_tests.test_a_vote_leaves_only_when_it_is_on_disk),
    Fault(plants.sync_of_an_earlier_vote, election_tests.test_a_sync_of_an_earlier_term_lets_no_later_vote_go),
    Fault(plants.two_votes_in_a_term, election_tests.test_a_member_votes_once_in_a_term, SOON),
    Fault(plants.vote_for_a_shorter_log, partial(up_to_date, [1, 1], 0, 1, False), SOON),
    Fault(plants.vote_by_length_only, partial(up_to_date, [1, 2], 5, 1, False)),
    Fault(plants.no_pre_vote, election_tests.test_an_isolated_member_raises_no_term_and_disturbs_no_leader),
    Fault(
        plants.voters_forget_their_leader,
        election_tests.test_a_member_that_hears_its_leader_takes_part_in_no_other_election,
    ),
    Fault(plants.no_check_quorum, election_tests.test_a_leader_without_a_quorum_steps_down_and_answers_no_more),
    Fault(plants.equal_time_outs, election_tests.test_time_outs_are_spread),
    Fault(
        plants.removed_only_voter_waits,
        member_tests.test_who_alone_has_the_change_that_removes_it_leads_until_it_is_kept,
    ),
    Fault(plants.old_term_by_counting, commit_tests.test_an_entry_of_an_earlier_term_is_not_committed_by_counting),
    Fault(plants.no_noop, commit_tests.test_a_new_leader_commits_what_an_earlier_one_left, SOON),
    Fault(plants.quorum_too_small, partial(commit_tests.test_a_majority_is_more_than_half, 4, 3), SOON),
    Fault(plants.learners_count, commit_tests.test_learners_and_strangers_do_not_count, SOON),
    Fault(plants.follower_acks_before_sync, commit_tests.test_a_follower_acknowledges_when_its_log_is_on_disk, SOON),
    Fault(plants.leader_counts_before_sync, commit_tests.test_a_leader_counts_itself_when_its_log_is_on_disk, SOON),
    Fault(
        plants.sync_of_what_was_cut,
        commit_tests.test_a_sync_that_began_before_a_cut_says_nothing_of_what_came_after_it,
    ),
    Fault(plants.killed_means_synced, commit_tests.test_what_a_killed_process_left_is_not_taken_for_synced, SOON),
    Fault(plants.wrong_prev_check, partial(without_prev, 1, 2), SOON),
    Fault(plants.overtaken_append_cuts, replication_tests.test_an_append_that_was_overtaken_takes_nothing_back, SOON),
    Fault(plants.committed_is_cut, replication_tests.test_what_is_committed_is_not_cut, SOON),
    Fault(plants.commit_beyond_match, replication_tests.test_a_follower_commits_no_more_than_what_was_compared, SOON),
    Fault(plants.heartbeat_tells_all, replication_tests.test_a_heartbeat_tells_no_more_than_was_acknowledged, SOON),
    Fault(
        plants.match_of_an_earlier_term,
        replication_tests.test_what_agreed_with_an_earlier_leader_is_not_acknowledged_to_the_next,
    ),
    Fault(plants.old_leader_is_obeyed, replication_tests.test_an_append_of_a_term_that_is_over_is_refused, SOON),
    Fault(plants.new_log_for_who_has_it, replication_tests.test_who_has_the_base_keeps_what_comes_behind_it),
    Fault(
        plants.late_reset_is_obeyed, replication_tests.test_a_late_request_to_begin_a_new_log_takes_nothing_back, SOON
    ),
    Fault(
        plants.lost_append_is_not_repeated,
        replication_tests.test_a_lost_append_is_sent_again_without_new_traffic,
        SOON,
    ),
    Fault(plants.no_way_back, progress_tests.test_a_rejection_leads_to_the_hint, SOON),
    Fault(plants.stale_leader_reads, read_tests.test_a_leader_that_was_replaced_answers_no_read, SOON),
    Fault(
        plants.read_before_own_commit,
        read_tests.test_a_new_leader_answers_no_read_before_it_has_committed_an_entry_of_its_own,
        SOON,
    ),
    Fault(plants.read_confirmed_by_the_past, read_tests.test_an_answer_to_an_earlier_heartbeat_confirms_nothing),
    Fault(plants.late_answer_confirms, read_tests.test_an_answer_to_an_earlier_heartbeat_confirms_nothing),
    Fault(plants.two_changes_at_a_time, member_tests.test_a_change_waits_for_the_one_before_it),
    Fault(plants.two_members_in_a_change, partial(refused_change, "a", "", "one member at a time"), SOON),
    Fault(plants.change_before_own_commit, member_tests.test_a_change_waits_for_an_entry_of_the_own_term),
    Fault(plants.cut_change_stays, member_tests.test_a_change_that_is_cut_off_is_undone),
    Fault(plants.removed_leader_goes_on, member_tests.test_a_removed_leader_leads_until_its_removal_is_committed),
    Fault(
        plants.removed_leader_counts_itself,
        member_tests.test_a_removed_leader_leads_until_its_removal_is_committed,
        SOON,
    ),
    Fault(plants.transfer_to_who_is_behind, transfer_tests.test_a_member_takes_over_when_it_has_the_whole_log),
    Fault(plants.entries_during_a_transfer, transfer_tests.test_no_entries_are_taken_while_leadership_moves),
    Fault(plants.torn_vote_is_read, storage_tests.test_a_torn_copy_is_not_read),
    Fault(plants.one_copy_of_the_vote, storage_tests.test_a_state_is_written_in_two_places_one_after_the_other, SOON),
    Fault(plants.lost_vote_is_none, in_a_folder(storage_tests.test_a_vote_that_cannot_be_read_stops_the_start)),
    Fault(
        log_plants.cut_leaves_old_bytes,
        in_a_folder(log_tests.test_a_cut_entry_does_not_come_back_behind_one_of_the_same_size),
        SOON,
    ),
    Fault(
        log_plants.cut_is_not_synced,
        in_a_folder(log_tests.test_a_cut_entry_does_not_come_back_behind_one_of_the_same_size),
    ),
    Fault(
        log_plants.torn_entry_is_taken, in_a_folder(log_tests.test_rot_behind_the_checkpoint_ends_the_log_there), SOON
    ),
    Fault(
        log_plants.checkpoint_ahead_of_sync,
        in_a_folder(log_tests.test_a_checkpoint_speaks_only_of_what_is_synced),
        SOON,
    ),
    Fault(log_plants.checkpoint_forgets_the_members, log_in_memory),
    Fault(log_plants.checkpoint_of_what_was_cut, in_a_folder(cut_below_checkpoint), SOON),
    Fault(log_plants.restart_syncs_nothing, log_power_cuts, SOON),
    Fault(log_plants.reset_in_two_steps, log_power_cuts),
    Fault(log_plants.saved_commit_is_cut, in_a_folder(log_tests.test_what_is_committed_is_never_cut_off)),
    Fault(log_plants.lost_tail_is_taken_as_the_end, lost_tail),
    Fault(
        log_plants.place_of_another_file_size,
        in_a_folder(log_tests.test_members_with_other_file_sizes_refuse_each_other),
    ),
    Fault(
        log_plants.node_acks_before_sync,
        on_a_loop(node_tests.test_an_entry_is_committed_when_two_of_three_have_synced_it),
    ),
    Fault(log_plants.node_answers_before_the_vote_is_saved, on_a_loop(node_tests.test_a_vote_leaves_when_it_is_saved)),
)


def planted(plant: Callable[[Patch], None]) -> AbstractContextManager[None]:
    """Return a context in which a fault is there."""

    @contextmanager
    def there() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            yield

    return there()


def problem_in(run: Callable[[], object]) -> str | None:
    """Return what goes wrong, whatever it is: nothing that does goes unnoticed."""
    try:
        run()
    except (Exception, pytest.fail.Exception) as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def seed_that_shows(fault: Fault, seeds: int) -> tuple[int, str] | None:
    """Return the first seed in which a fault shows, and how."""
    with planted(fault.plant):
        for seed in range(seeds):
            if (problem := problem_in(partial(live_and_heal, seed))) is not None:
                return seed, problem
    return None


def shows_in_directed_test(fault: Fault) -> bool:
    """Return whether the directed test fails with the fault; it must not fail without."""
    assert problem_in(fault.directed) is None
    with planted(fault.plant):
        return problem_in(fault.directed) is not None


def main(seeds: int) -> int:
    """Plant each fault and print what catches it."""
    missing = 0
    print(f"| Fault | Hazard | Simulation: first of {seeds:,} seeds | Seen as | Directed test |")
    print("|---|---|---|---|---|")
    for fault in FAULTS:
        shown = seed_that_shows(fault, seeds)
        seed, problem = shown if shown is not None else ("–", "")
        seen = re.sub(r"^Violation: seed \d+ at \d+ ms: ", "", problem)
        kind = next((word for word in _KINDS if word in seen), seen.split(":")[0])
        is_directed = shows_in_directed_test(fault)
        test = _test_name(fault.directed) if is_directed else "–"
        missing += shown is None and not is_directed
        print(f"| {fault.name} | {fault.hazard} | {seed} | {kind} | {test} |", flush=True)
    print(f"\n{len(FAULTS)} faults, {missing} not caught")
    return 1 if missing else 0


_KINDS = (
    "election safety",
    "leader completeness",
    "log matching",
    "state machine safety",
    "liveness",
    "is cut off",
    "on disk at",
    "a read sees",
    "a log begins",
    "committed twice",
    "both lead",
)


def _test_name(test: Callable[..., None]) -> str:
    inner = test.func if isinstance(test, partial) else test
    return f"`{inner.__name__}`"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS))
