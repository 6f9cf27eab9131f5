"""The optional native part: compiled code for the bytes of a message, with a twin in pure Python of the same results.

`scripts/native` builds the modules `_*.pyx` in this folder where a C compiler is found. A module is `None` here, and
its twin does the work, when it is not built, was built from another source, or `COSMODROME_PURE=1` turns it off.
"""

from __future__ import annotations

import os
import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType

PURE_VARIABLE = "COSMODROME_PURE"


def _load(name: str) -> tuple[ModuleType | None, str]:
    """Return a compiled module, or None, and why that one."""
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return None, f"{PURE_VARIABLE} is set"
    try:
        module = import_module(f"cosmodrome.native.{name}")
    except ImportError as error:
        is_built = any(Path(__file__).parent.glob(f"{name}.*.so"))
        return None, f"it cannot be loaded: {error}; run scripts/native" if is_built else "it is not built"
    try:
        source = Path(__file__).with_name(f"{name}.pyx").read_bytes()
    except OSError:  # an installed package may come without it
        return module, "compiled"
    if zlib.crc32(source) != module.SOURCE:
        return None, "it was built from another source; run scripts/native"
    return module, "compiled"


wire, _wire_reason = _load("_wire")
store, _store_reason = _load("_store")
log, _log_reason = _load("_log")


def describe() -> str:
    """Return which of the two does the work, and why."""
    pure = {
        "requests and replies": (wire, _wire_reason),
        "records": (store, _store_reason),
        "copies": (log, _log_reason),
    }
    reasons = {name: reason for name, (module, reason) in pure.items() if module is None}
    if not reasons:
        return "native code: compiled"
    if len(reasons) == len(pure):
        return f"pure Python: the native part is not used ({_wire_reason})"
    return "native code: compiled; pure Python: " + ", ".join(f"{name} ({why})" for name, why in reasons.items())
