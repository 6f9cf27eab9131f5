"""Packages whose names are imported at their first use: both lists of names agree, and nothing shows the difference."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import cosmodrome
import cosmodrome.blocking

ROOT = Path(cosmodrome.__file__).parent
LAZY = [path for path in sorted(ROOT.rglob("*.py")) if "= lazy_names(" in path.read_text() and path.name != "lazy.py"]


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def typed_names(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each import that type checkers see."""
    (block,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module
        yield from ((node.module, alias.name) for alias in node.names)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_the_doors_are_lazy() -> None:
    assert {package_of(path) for path in LAZY} >= {"cosmodrome", "cosmodrome.blocking", "cosmodrome.wire.bodies"}


@pytest.mark.parametrize("path", LAZY, ids=package_of)
def test_each_name_is_the_one_that_type_checkers_see(path: Path) -> None:
    package = import_module(package_of(path))
    typed = {name: module for module, name in typed_names(path)}
    assert sorted(typed) == sorted(name for name in package.__all__ if name != "__version__")
    assert set(package.__all__) <= set(dir(package))
    for name, module in typed.items():
        assert getattr(package, name) is getattr(import_module(module), name), name


def test_an_import_brings_nothing_that_is_not_used() -> None:
    show = "import sys; print(*sorted(name for name in sys.modules if name.startswith('cosmodrome')))"
    assert run(f"import cosmodrome; {show}").split() == ["cosmodrome", "cosmodrome.lazy"]
    brought = run(f"from cosmodrome import Message; {show}").split()
    assert "cosmodrome.model" in brought
    assert not [name for name in brought if name.startswith(("cosmodrome.client", "cosmodrome.wire"))]


@pytest.mark.parametrize("package", ["cosmodrome", "cosmodrome.blocking"])
def test_a_star_brings_every_name(package: str) -> None:
    names = import_module(package).__all__
    assert run(f"from {package} import *; print(*({', '.join(names)},), sep='\\n')").count("\n") == len(names)


def test_submodules_are_attributes_without_an_import() -> None:
    printed = run("import cosmodrome; print(cosmodrome.errors.ConfigError.__name__, cosmodrome.client.__name__)")
    assert printed == "ConfigError cosmodrome.client\n"


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="module 'cosmodrome' has no attribute 'Prodcer'") as refused:
        _ = cosmodrome.Prodcer  # type: ignore[attr-defined]
    assert (refused.value.name, refused.value.obj) == ("Prodcer", cosmodrome)
    with pytest.raises(ImportError, match="cannot import name 'Prodcer'"):
        exec("from cosmodrome import Prodcer")


def test_values_and_classes_travel_by_pickle() -> None:
    message = cosmodrome.Message("orders", b"1", tags="paid")
    assert pickle.loads(pickle.dumps(message)) == message
    for chosen in (cosmodrome.Producer, cosmodrome.blocking.Producer, cosmodrome.averagely):
        assert pickle.loads(pickle.dumps(chosen)) is chosen
