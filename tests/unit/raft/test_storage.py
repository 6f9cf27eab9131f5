"""Term and vote, through power cuts at every moment, torn writes, rot and errors of the disk."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.raft import storage
from cosmodrome.raft.messages import HardState
from cosmodrome.raft.storage import COPY_PLACES, HardStateFile
from cosmodrome.testing.faulty_disk import Fault, FaultyDisk, Kind

STATES = [HardState(1, "n0"), HardState(2, None), HardState(2, "n1"), HardState(70, "n2-host:40911")]


def saved(path: Path) -> HardStateFile:
    file = HardStateFile(path, is_new=True)
    for state in STATES:
        file.save(state)
    return file


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    saved(tmp_path / "vote").close()
    file = HardStateFile(tmp_path / "vote", is_new=False)
    assert file.hard_state == STATES[-1]
    file.close()


def test_no_moment_of_a_power_cut_loses_what_was_saved(tmp_path: Path) -> None:
    folder, copies = tmp_path / "disk", tmp_path / "copies"
    folder.mkdir()
    promised = [HardState()]
    marks = []
    with FaultyDisk(folder) as disk:
        file = HardStateFile(folder / "vote", is_new=True)
        for state in STATES:
            marks.append((len(disk.moments), promised[-1]))
            file.save(state)
            promised.append(state)
        marks.append((len(disk.moments), promised[-1]))
        file.close()
        moments = list(disk.moments)
    first = marks[0][0]
    for number, moment in enumerate(moments):
        least = max((state for mark, state in marks if mark <= number), default=None, key=promised.index)
        for seed in range(4):
            target = copies / f"{number}-{seed}"
            target.mkdir(parents=True)
            moment.materialise(target, Random(seed))
            again = HardStateFile(target / "vote", is_new=number < first or not (target / "vote").exists())
            again.close()
            found = again.hard_state
            assert found in promised
            if least is not None:
                assert promised.index(found) in (promised.index(least), promised.index(least) + 1)


@pytest.mark.parametrize("place", COPY_PLACES)
def test_a_bit_that_rots_costs_no_vote(tmp_path: Path, place: int) -> None:
    saved(tmp_path / "vote").close()
    good = (tmp_path / "vote").read_bytes()
    size = len(storage.encode(0, STATES[-1]))
    for bit in range(0, size * 8, 7):  # each bit of a byte somewhere
        image = bytearray(good)
        image[place + bit // 8] ^= 1 << bit % 8
        (tmp_path / "vote").write_bytes(image)
        file = HardStateFile(tmp_path / "vote", is_new=False)
        file.close()
        assert file.hard_state == STATES[-1]


def test_a_state_is_written_in_two_places_one_after_the_other() -> None:
    pages = [place // 4096 for place, _ in storage.writes(1, STATES[0])]
    assert pages == [0, 1]


def test_a_torn_copy_is_not_read() -> None:
    old, new = storage.encode(1, HardState(3, "n1")), storage.encode(2, HardState(4, "n2"))
    for place in range(1, len(new)):
        mixed = new[:place] + old[place:]
        assert mixed in (old, new) or storage.decode(mixed) is None
        assert storage.decode(new[:place]) is None


def test_a_vote_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "vote"
    saved(path).close()
    path.write_bytes(b"\0" * 8192)
    for is_new in (True, False):
        with pytest.raises(StoreError, match="nobody knows what this member has voted for"):
            HardStateFile(path, is_new=is_new)
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        HardStateFile(path, is_new=False)


def test_a_disk_that_fails_is_not_believed(tmp_path: Path) -> None:
    with FaultyDisk(tmp_path) as disk:
        file = HardStateFile(tmp_path / "vote", is_new=True)
        disk.fault = Fault(0, errno.EIO, kinds=frozenset({Kind.SYNC}))
        with pytest.raises(OSError, match="did not reach the disk"):
            file.save(STATES[0])
        assert file.hard_state == HardState()
        file.close()


def test_an_id_too_long_for_the_file_is_refused() -> None:
    with pytest.raises(StoreError, match="at most 1024"):
        storage.encode(1, HardState(1, "n" * 1025))
