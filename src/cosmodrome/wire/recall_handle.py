"""What a sender keeps of a timed message so that it can take it back.

base64url of:  v1 <topic> <broker name> <delivery time, ms> <unique key>
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from cosmodrome.errors import ProtocolError
from cosmodrome.numbers import read_int

_VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_key))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """ProtocolError when it is not one."""
        try:
            padded = handle + "=" * (-len(handle) % 4)
            parts = base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode().split(" ")
            if parts[0] == _VERSION and len(parts) >= _PARTS:
                return cls(parts[1], parts[2], read_int(parts[3]), parts[4])
        except (binascii.Error, ValueError):
            pass
        raise ProtocolError("recall handle is invalid")
