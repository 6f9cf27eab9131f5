"""The import direction: a package imports from rows below its own, and neighbours in a row do not know each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cosmodrome

ROOT = Path(cosmodrome.__file__).parent

ROWS = (
    (
        "model",
        "errors",
        "config",
        "clock",
        "codes",
        "apache_keys",
        "promises",
        "properties_file",
        "state_file",
        "disk",
        "lazy",
        "mapped_file",
        "native",
        "numbers",
        "release",
        "troubles",
    ),
    ("wire",),
    ("store", "raft", "net", "filter", "access"),
    ("replication", "client"),
    ("broker", "nameserver", "controller", "admin"),
    ("spark",),
    ("pipelines",),
    ("cli", "console"),
)
ROW = {name: row for row, names in enumerate(ROWS) for name in names}

# The words of row 0 are one vocabulary: they may use each other.
WORDS = ROWS[0]

# What only `pip install cosmodrome[spark]` brings, and who may import it: everything else works without.
SPARK_PACKAGES = frozenset({"grpc", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "yaml"})
SPARK_PARTS = frozenset({"spark", "pipelines"})
YAML_PARTS = SPARK_PARTS | {"access"}  # which the extra `acl` brings it as well

# What decides for a Raft group gets its messages, the time and chance as arguments; only these know of a disk.
RAFT_NEEDS = frozenset({"__future__", "collections", "cosmodrome", "dataclasses", "enum", "itertools", "json"})
RAFT_NEEDS |= {"random", "struct", "typing", "zlib"}
RAFT_SHELL = frozenset({"storage.py", "entry_files.py", "entry_log.py", "node.py"})

# Doors for users, which only show what lies behind them: `import cosmodrome`, its face without await, `python -m`.
DOORS = {"": ("client", *WORDS), "blocking": ("client", *WORDS), "__main__": ("cli",)}


def part_of(module: str) -> str:
    """`store` of `cosmodrome.store.commit_log`; the top package itself is the empty part."""
    return module.split(".")[1] if "." in module else ""


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_statements(source: str) -> Iterator[tuple[int, list[str]]]:
    """Line and module names of every import in `source`, at the top or inside a function.

    `from a import b` gives `a.b` and `a`: only the files there are can tell which of them is a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, [alias.name]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, [f"{node.module}.{alias.name}", node.module]) for alias in node.names)


def imports(source: str, submodules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every module of ours that `source` imports."""
    for line, names in import_statements(source):
        if names[0].split(".")[0] == "cosmodrome":
            yield line, names[0] if names[0] in submodules else names[-1]


def allowed(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if importer == "testing":
        return True  # it stands above everything: nothing imports it
    if importer in DOORS:
        return imported in DOORS[importer]
    if imported == "":
        return ROW.get(importer, -1) > ROW["client"]  # the top package shows the client
    if importer not in ROW or imported not in ROW:
        return False
    if imported in WORDS:
        return True
    return ROW[imported] < ROW[importer]


def violations(root: Path) -> list[str]:
    paths = sorted(root.rglob("*.py"))
    submodules = frozenset(module_of(path, root) for path in paths)
    found = []
    for path in paths:
        importer = part_of(module_of(path, root))
        for line, name in imports(path.read_text(), submodules):
            if not allowed(importer, part_of(name)):
                found.append(f"{path.relative_to(root.parent)}:{line} imports {name}")
    return found


def test_imports_point_downward() -> None:
    assert violations(ROOT) == []


def test_only_spark_needs_what_only_its_extra_brings() -> None:
    found = [
        f"{path.relative_to(ROOT.parent)}:{line} imports {names[-1]}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, names in import_statements(path.read_text())
        if (name := names[-1].split(".")[0]) in SPARK_PACKAGES
        and part_of(module_of(path, ROOT)) not in (YAML_PARTS if name == "yaml" else SPARK_PARTS)
    ]
    assert found == []


def test_the_core_of_raft_does_no_io() -> None:
    found = [
        f"{path.name}:{line} imports {names[-1]}"
        for path in sorted((ROOT / "raft").glob("*.py"))
        for line, names in import_statements(path.read_text())
        if path.name not in RAFT_SHELL
        and (names[-1].split(".")[0] not in RAFT_NEEDS or names[-1] in ("cosmodrome.disk", "cosmodrome.clock"))
    ]
    assert found == []


def test_every_part_has_a_row() -> None:
    parts = {part_of(module_of(path, ROOT)) for path in ROOT.rglob("*.py")}
    assert parts - {"testing", *DOORS} <= set(ROW)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire/frame.py", "import cosmodrome.net.server"),
        ("store/log.py", "from cosmodrome.net import connection"),
        ("store/log.py", "from cosmodrome.net.connection import Connection"),
        ("store/log.py", "def late() -> None:\n    from cosmodrome.broker import answer"),
        ("broker/broker.py", "from cosmodrome import nameserver"),
        ("broker/broker.py", "from cosmodrome.testing import FakeClock"),
        ("model.py", "from cosmodrome.wire import record"),
        ("client/producer.py", "from cosmodrome import Producer"),
        ("__init__.py", "from cosmodrome.broker import Broker"),
        ("blocking.py", "from cosmodrome.broker import Broker"),
        ("__main__.py", "from cosmodrome.broker import Broker"),
        ("broker/broker.py", "from cosmodrome.blocking import Producer"),
        ("newcomer/thing.py", "from cosmodrome import model"),
    ],
)
def test_an_upward_import_is_named(tmp_path: Path, module: str, source: str) -> None:
    root = tmp_path / "cosmodrome"
    for name in ("broker", "net", "nameserver", "wire", "testing"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").touch()
    path = root / module
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    (found,) = violations(root)
    assert found.startswith(f"cosmodrome/{module}:")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire/frame.py", "from cosmodrome import model, errors"),
        ("broker/broker.py", "from cosmodrome.store.message_store import MessageStore"),
        ("broker/broker.py", "from cosmodrome.broker.topics import Topics"),
        ("config.py", "from cosmodrome.errors import ConfigError"),
        ("testing/clock.py", "from cosmodrome.broker import Broker"),
        ("__init__.py", "from cosmodrome.client import Producer"),
        ("blocking.py", "from cosmodrome.client.blocking import Producer"),
        ("__main__.py", "from cosmodrome.cli.main import main"),
        ("cli/main.py", "from cosmodrome import __version__"),
        ("store/log.py", "import os, pathlib"),
    ],
)
def test_a_downward_import_is_fine(tmp_path: Path, module: str, source: str) -> None:
    root = tmp_path / "cosmodrome"
    for name in ("errors.py", "model.py", module):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / module).write_text(source)
    assert violations(root) == []
