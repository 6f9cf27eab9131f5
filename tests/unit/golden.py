"""The golden files: each format as Apache's own classes wrote it."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "golden"
V4, V5 = VERSIONS = ("4.9.7", "5.3.3")


def golden(version: str, name: str) -> bytes:
    return (FOLDER / version / name).read_bytes()
