"""What a leader knows of a follower, from answers that may be late, doubled or lost."""

from __future__ import annotations

from cosmodrome.raft.progress import Progress, Sending


def replicating(match: int, window: int = 3) -> Progress:
    progress = Progress(match + 1, window, 0)
    progress.sent(match, 0)
    progress.accepted(match, 0)
    assert progress.sending is Sending.REPLICATE
    return progress


def test_a_probe_waits_for_its_answer() -> None:
    progress = Progress(10, 3, 0)
    assert not progress.is_paused
    progress.sent(12, 0)
    assert progress.is_paused
    assert progress.accepted(12, 0)
    assert (progress.match, progress.next, progress.is_paused) == (12, 13, False)


def test_a_window_fills_and_empties() -> None:
    progress = replicating(9)
    for last in (10, 12, 13):
        progress.sent(last, 0)
    assert progress.is_paused
    progress.accepted(12, 0)
    assert not progress.is_paused
    assert progress.next == 14


def test_an_acknowledgement_of_the_past_takes_nothing_back() -> None:
    progress = replicating(9)
    assert not progress.accepted(4, 0)
    assert (progress.match, progress.next) == (9, 10)


def test_a_rejection_leads_to_the_hint() -> None:
    progress = Progress(10, 3, 0)
    progress.sent(10, 0)
    progress.rejected(9, 5, 0)
    assert (progress.next, progress.is_paused) == (6, False)


def test_a_rejection_that_was_overtaken_is_ignored() -> None:
    progress = Progress(10, 3, 0)
    progress.sent(10, 0)
    progress.rejected(9, 5, 0)
    progress.sent(6, 0)
    progress.rejected(9, 2, 0)
    assert (progress.next, progress.is_paused) == (6, True)


def test_a_rejection_goes_back_by_one_at_least_and_never_below_what_is_known() -> None:
    progress = Progress(10, 3, 0)
    progress.match = 7
    progress.sent(10, 0)
    progress.rejected(9, 50, 0)
    assert progress.next == 9
    progress.sent(9, 0)
    progress.rejected(8, 0, 0)
    assert progress.next == 8


def test_a_lost_append_leads_back_to_what_is_known() -> None:
    progress = replicating(9)
    progress.sent(10, 0)
    progress.sent(11, 0)
    progress.rejected(10, 9, 0)
    assert (progress.sending, progress.next) == (Sending.PROBE, 10)
    progress.rejected(9, 3, 0)
    assert progress.next == 10  # what was acknowledged is on the follower's disk


def test_while_a_follower_begins_a_new_log_nothing_is_sent() -> None:
    progress = Progress(3, 3, 0)
    progress.sent(2, 0)
    progress.reset()
    assert progress.is_paused
    progress.accepted(-1, 0)
    assert progress.sending is Sending.RESET
    progress.accepted(20, 0)
    assert (progress.sending, progress.next, progress.is_paused) == (Sending.REPLICATE, 21, False)
