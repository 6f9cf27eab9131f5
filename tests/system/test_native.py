"""The choice between native code and pure Python: no compiler is ever needed, and nothing else changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cosmodrome import native

ROOT = Path(__file__).parents[2]
PURE = {**os.environ, "COSMODROME_PURE": "1"}


def version_lines(env: dict[str, str]) -> list[str]:
    words = [sys.executable, "-m", "cosmodrome", "--version", "-v"]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_version_says_which_of_the_two_does_the_work() -> None:
    assert version_lines(dict(os.environ))[2] == native.describe()
    assert version_lines(PURE)[2] == "pure Python: the native part is not used (COSMODROME_PURE is set)"


def test_what_was_built_from_another_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COSMODROME_PURE", raising=False)
    monkeypatch.setattr(native, "import_module", lambda _name: SimpleNamespace(SOURCE=1))
    assert native._load("_wire") == (None, "it was built from another source; run scripts/native")


def test_without_a_compiler_one_line_says_that_pure_python_does_the_work(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    folder = tmp_path / "src/cosmodrome/native"
    shutil.copytree(ROOT / "src/cosmodrome/native", folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    env = {**os.environ, "CC": "no-such-compiler", "COSMODROME_PURE": ""}
    words = ["scripts/native", sys.prefix]
    built = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert built.stdout.splitlines() == [
        "==> native part not built, pure Python does the work: no C compiler (no-such-compiler) is found"
    ]
    assert not list(folder.glob("*.so"))


def test_pure_python_keeps_the_promises_of_the_formats() -> None:
    tests = ["tests/property/test_frames_and_commands.py", "tests/property/test_native.py"]
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run(words, cwd=ROOT, env=PURE, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
