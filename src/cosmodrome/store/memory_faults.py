"""The last words of a process that dies of mapped memory.

Whoever touches a mapped page that the system cannot provide gets SIGBUS: the file was made shorter, its disk has no
room for a hole, or the disk cannot read it. The store makes neither hole nor cut; other programs and broken disks do,
and Python would die without a word. The handler costs nothing until then.

A handler set with `signal` never runs, for the instruction that faults is tried again at once. This one is called by
the system in the thread that faulted, in the middle of copying bytes: there Python code may run, and does not return.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from cosmodrome.store.lock import marks_in_use

_MAPS = Path("/proc/self/maps")
_SA_SIGINFO = 4
_SIGNAL_SET_WORDS = 128 // ctypes.sizeof(ctypes.c_ulong)
_EXIT_CODE = 1
_STANDARD_ERROR = 2


class _SigInfo(ctypes.Structure):
    """The begin of `siginfo_t`, as far as a memory fault fills it."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_SigInfo), ctypes.c_void_p)


class _SigAction(ctypes.Structure):
    """`struct sigaction` of the C libraries of Linux."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_ulong * _SIGNAL_SET_WORDS),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def tell_memory_faults() -> None:
    """Have a SIGBUS end this process with a sentence that names the file, and with exit code 1. The next process that
    opens the store logs that sentence, too.

    Where that cannot be set up, the process dies as before, but says at which line.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None, use_errno=True)
            if library.sigaction(signal.SIGBUS, ctypes.byref(_ACTION), None) == 0:
                return
    faulthandler.enable()


def _on_fault(_number: int, info: ctypes._Pointer[_SigInfo], _context: int) -> None:
    try:
        sentence = _sentence(info.contents.address or 0)
        os.write(_STANDARD_ERROR, f"Error: {sentence}\n".encode(errors="replace"))
        for mark in marks_in_use:
            mark.note_death(sentence)
    finally:
        os._exit(_EXIT_CODE)


def _sentence(address: int) -> str:
    path, offset = _mapped_at(address)
    if not path:
        return "memory failed (SIGBUS) where no file is mapped; look for failing hardware in the system's log"
    return f"{path} cannot be used at byte {offset} (SIGBUS): {_reason(path, offset)}"


def _reason(path: str, offset: int) -> str:
    try:
        size = os.stat(path).st_size
        room = os.statvfs(path)
    except OSError as error:
        return f"{error.strerror}; see to the disk before the next start"
    if offset >= size:
        return f"another program cut it to {size} bytes; put its content back, or see `cosmodrome store verify`"
    if room.f_bavail == 0:
        return "its disk has no room; make some before the next start"
    return "the disk did not deliver it; see to the disk before the next start"


def _mapped_at(address: int) -> tuple[str, int]:
    """The file that is mapped at an address, and the place in it; "" if there is none."""
    for line in _MAPS.read_text(errors="replace").splitlines():
        span, _, first, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(text, 16) for text in span.split("-"))
        if begin <= address < end:
            return (path[0] if path else ""), address - begin + int(first, 16)
    return "", 0


_HANDLER = _Handler(_on_fault)
_ACTION = _SigAction(handler=_HANDLER, flags=_SA_SIGINFO)
