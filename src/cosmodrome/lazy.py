"""Names of a package that are imported at their first use, so that an import costs only what it uses.

A package lists each name twice: under TYPE_CHECKING, as an import that type checkers and editors read, and for
`lazy_names`. `tests/unit/test_lazy.py` compares the two lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], submodules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names other modules define.

    `modules` gives the names that each module defines, separated by spaces; `submodules` those of the package's own
    modules that are its attributes without an import. A name found once is an ordinary attribute from then on.
    """
    home = {name: module for module, names in modules.items() for name in names.split()}
    parts = frozenset(submodules.split())

    def find(name: str) -> Any:
        if name in parts:
            return _imported(f"{package}.{name}")
        found = sys.modules[package]
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=found)
        value = getattr(_imported(home[name]), name)
        setattr(found, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *parts})

    return find, names


def _imported(module: str) -> ModuleType:
    """Import a module by its name; unlike `import_module`, `python -X importtime` shows the import."""
    __import__(module)
    return sys.modules[module]
