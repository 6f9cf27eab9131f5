"""The places of a store's parts: below its root, unless the config names others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, permutations
from pathlib import Path

from cosmodrome import disk, state_file
from cosmodrome.config import StoreConfig
from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import log_file_names, sync_directory


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Folders and files of one store. Config tables, timers and the lock lie below the root, always."""

    root: Path
    commit_log: Path
    consume_queue: Path
    index: Path
    checkpoint: Path
    abort: Path

    @classmethod
    def of(cls, root: Path, config: StoreConfig | None = None) -> StorePaths:
        """Return the paths that a config sets for the store in `root`; without one, those of the defaults."""
        places = config or StoreConfig()
        paths = cls(
            root,
            Path(places.store_path_commit_log or root / "commitlog"),
            Path(places.store_path_consume_queue or root / "consumequeue"),
            Path(places.store_path_index or root / "index"),
            Path(places.store_checkpoint or root / "checkpoint"),
            Path(places.abort_file or root / "abort"),
        )
        paths._check_apart()
        return paths

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def config(self) -> Path:
        """The folder of the broker's tables."""
        return self.root / "config"

    def _check_apart(self) -> None:
        """Refuse folders that lie in one another: the files of one would be taken for files of the other."""
        folders = {
            "storePathCommitLog": _real(self.commit_log),
            "storePathConsumeQueue": _real(self.consume_queue),
            "storePathIndex": _real(self.index),
        }
        for (key, folder), (other_key, other) in permutations(folders.items(), 2):
            if folder.is_relative_to(other):
                raise StoreError(f"{key} ({folder}) lies in {other_key} ({other}); give each a folder of its own")
        for key, folder in folders.items():
            if _real(self.root).is_relative_to(folder):
                raise StoreError(f"{key} ({folder}) is, or holds, the store's root {self.root}; name a folder below it")

    def _moved(self) -> Iterator[tuple[str, Path, Path]]:
        """Each key that names another place than the default: the key, the place, the default."""
        usual = StorePaths.of(self.root)
        for key, place, default in (
            ("storePathCommitLog", self.commit_log, usual.commit_log),
            ("storePathConsumeQueue", self.consume_queue, usual.consume_queue),
            ("storePathIndex", self.index, usual.index),
            ("storeCheckpoint", self.checkpoint, usual.checkpoint),
            ("abortFile", self.abort, usual.abort),
        ):
            if _real(place) != _real(default):
                yield key, place, default

    def check_nothing_left_behind(self) -> None:
        """Refuse a key that names an empty place while the default place is in use; StoreError says what to move.

        Apache 4.9 and 5 know `storePathCommitLog` only and keep the rest below the root, whatever the other keys say;
        earlier versions of this broker kept everything there. So of two logs it is unknown which one the queues
        belong to.
        """
        for key, place, default in self._moved():
            if not _holds_anything(default):
                continue
            if place == self.commit_log and _holds_anything(place):
                raise StoreError(
                    f"there are two commit logs: {place} ({key}) and {default}. Nothing was changed. Find out with "
                    f"cosmodrome store inspect and verify to which the queues belong, and move the other one away"
                )
            if not _holds_anything(place):
                raise StoreError(
                    f"{key} is {place}, where there is nothing, but {default} is in use. Nothing was changed. "
                    f"Move {default} to {place}, or take {key} out of the config"
                )

    @property
    def outside(self) -> list[Path]:
        """The folders of data that the lock below the root does not protect."""
        root = _real(self.root)
        folders = (self.commit_log, self.consume_queue, self.index)
        return [folder for folder in folders if not _real(folder).is_relative_to(root)]

    def refuse_links(self) -> None:
        """LinkRefused if a folder that no key names is a symbolic link: who planted it chose where files go."""
        kept = (aside_folder(folder) for folder in (self.commit_log, self.consume_queue))
        for folder in (self.config, self.root / "timerlog", *kept):
            disk.refuse_link(folder)

    def make_parents(self) -> None:
        """Return once the folders that the parts are made in are there for good."""
        for path in (self.consume_queue, self.index, self.checkpoint, self.abort):
            state_file.make_folder(path.parent)
        state_file.make_folder(self.commit_log)

    def sync_names(self) -> None:
        """Return once the names of all parts are on disk."""
        for folder in {path.parent for path in (self.consume_queue, self.index, self.checkpoint)} | {self.root}:
            sync_directory(folder)

    def name(self, path: Path) -> str:
        """Return a path as messages name it: below the root its rest, elsewhere the whole path."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def aside_folder(folder: Path) -> Path:
    """Return where files of a folder are kept aside: beside it, or in it where a disk is mounted on it."""
    return folder / "bad" if folder.is_mount() else folder.with_name(folder.name + ".bad")


def free_name(path: Path, suffix: str = ".bad") -> Path:
    """Return `path` with the suffix, and with a number if there is such a thing already."""
    suffixes = chain([suffix], (f"{suffix}{number}" for number in count(2)))
    names = (path.with_name(path.name + ending) for ending in suffixes)
    return next(name for name in names if not os.path.lexists(name))


def disk_folder(path: Path) -> Path:
    """Return the folder itself, or the nearest one above it that is there."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("."))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _holds_anything(path: Path) -> bool:
    """Return whether a file is there, or a folder has anything in it that a broker puts there."""
    if path.is_file():
        return True
    return bool(log_file_names(path)) or any(_parts(path))


def _parts(folder: Path) -> Iterator[Path]:
    """Folders of topics and files of an index; a disk's own `lost+found` is neither."""
    if folder.is_dir():
        yield from (entry for entry in folder.iterdir() if entry.name != "lost+found")
