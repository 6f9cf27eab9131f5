"""Whether the files of pending timers hang together, and speak of messages that are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cosmodrome.store.findings import Area, Findings, counted
from cosmodrome.store.survey import FoundFile, LogView, Maps, Survey, agreed_size, list_log_files
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.store.timer_log import UNIT_SIZE, Unit, is_last_place, unit_at
from cosmodrome.store.timer_wheel import FILE_SIZE, SLOTS, filled, numbers_of_slots, raw_slots

_SECOND_MS = 1_000
_TIMER_TOPIC = "rmq_sys_wheel_timer"


def check_timers(found: Survey, findings: Findings) -> None:
    """Add what is wrong with the files of timers."""
    _TimerCheck(found.root, found.log, found.maps, findings, aborted=found.aborted).run()


class _TimerCheck:
    """Reads every unit of the timer log and every slot of the wheel. A start mends both, so nothing here is lost."""

    def __init__(self, root: Path, log: LogView, maps: Maps, findings: Findings, *, aborted: bool) -> None:
        self._root = root
        self._log = log
        self._maps = maps
        self._findings = findings
        self._aborted = aborted

    def run(self) -> None:
        found, problems = TimerCheckpoint.look(self._root / "config" / "timercheck")
        for problem in problems:
            self._add("config", problem)
        saved = found or TimerCheckpoint()
        strays: list[Path] = []
        files = list_log_files(self._root / "timerlog", strays)
        for path in strays:
            self._add(path, "it does not belong here")
        due = self._check_units(files, saved)
        if due is not None:
            self._check_wheel(due, saved, files[0].start if files else 0)

    def _check_units(self, files: list[FoundFile], saved: TimerCheckpoint) -> list[tuple[int, int, int]] | None:
        """Return time and position of each pending unit, and what it counts; None if the log is damaged, as nothing
        fits it then."""
        size, due, place = agreed_size([files]), list[tuple[int, int, int]](), files[0].start if files else 0
        for number, file in enumerate(files, 1):
            if file.size != size or file.start != place:
                self._add(file.path, f"it has {file.size} bytes, the others {size}; or the file before it is missing")
                return None
            place = file.end
            for position, unit in self._units(file, is_last=number == len(files), sure_end=saved.log_end):
                if unit is None:
                    self._add(file.path, f"no timer is at byte {position - file.start}")
                    return None
                if what := self._trouble(unit):
                    self._add(f"{file.path}, byte {position - file.start}", what)
                if unit.due_ms >= saved.read_ms:
                    due.append((unit.due_ms, position, -1 if unit.is_deletion else 1))
        return due

    def _units(self, file: FoundFile, *, is_last: bool, sure_end: int) -> Iterator[tuple[int, Unit | None]]:
        view = self._maps.view(file.path)
        for at in range(0, len(view) - UNIT_SIZE + 1, UNIT_SIZE):
            unit = unit_at(view, at)
            if unit is None:
                is_end = (
                    is_last and file.start + at >= sure_end and (self._aborted or not any(view[at : at + UNIT_SIZE]))
                )
                if not is_end and not (is_last_place(at, len(view)) and not is_last):
                    yield file.start + at, None
                return
            yield file.start + at, unit

    def _trouble(self, unit: Unit) -> str:
        """What a unit says wrongly of its message, if that is still there and says anything."""
        if unit.physical_offset < self._log.start:
            return ""
        head = self._log.head_at(unit.physical_offset)
        if head is None or (head.topic, head.size) != (_TIMER_TOPIC, unit.size):
            return f"it speaks of a message at {unit.physical_offset} of the log, where none of the timer topic begins"
        return ""

    def _check_wheel(self, due: list[tuple[int, int, int]], saved: TimerCheckpoint, log_start: int) -> None:
        """Compare the units of each second. After a kill, the slots of the newest units may be behind."""
        path = self._root / "timerwheel"
        if not path.is_file():
            if due:
                self._add(path, "it is missing, though timers are pending; the next start builds it again")
            return
        if path.stat().st_size != FILE_SIZE:
            self._add(path, f"it has {path.stat().st_size} bytes instead of {FILE_SIZE}")
            return
        lasts = numbers_of_slots()
        firsts: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for time_ms, position, count in due:
            index = time_ms // _SECOND_MS % SLOTS
            firsts.setdefault(index, position)
            lasts[index] = position + 1
            counts[index] += count
        begin = saved.read_ms // _SECOND_MS
        wrong = 0
        for index, second, first, last, count in raw_slots(path, self._maps.view(path)):
            if (second - index) % SLOTS != 0:
                wrong += 1
            elif second >= begin:
                is_right = (first, last, count) == (firsts.get(index), lasts[index] - 1, counts[index])
                wrong += (not is_right or first < log_start) and not self._is_late(lasts[index], saved)
                lasts[index] = 0
        wrong += sum(1 for _, last in filled(lasts) if not self._is_late(last, saved))
        if wrong:
            self._add(path, f"{counted(wrong, 'slot')} of it do not say what the timer log says")

    def _is_late(self, last: int, saved: TimerCheckpoint) -> bool:
        return self._aborted and last > saved.log_end

    def _add(self, where: Path | str, what: str) -> None:
        name = str(where).removeprefix(f"{self._root}/")
        self._findings.add(Area.TIMERS, name, f"{what}; the next start of a broker mends it")
