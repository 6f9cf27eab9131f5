"""The golden files are still what Apache's classes write."""

from pathlib import Path

import pytest

from interop.golden import FOLDER, write_golden
from interop.setup import SERVER_VERSIONS


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_apaches_classes_write_the_golden_files(tmp_path: Path, version: str) -> None:
    write_golden(version, tmp_path)
    assert contents(tmp_path) == contents(FOLDER / version)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
