"""How groups get the messages of topics: by pulling, unless an operator said they pop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import LimitReached
from cosmodrome.model import RETRY_PREFIX, RequestMode
from cosmodrome.wire.bodies import RequestModeBody, RequestModesBody


class RequestModes(SavedTable):
    """Topic → group → request mode."""

    def __init__(self, config: BrokerConfig, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._config = config
        self._modes: dict[str, dict[str, RequestModeBody]] = {}
        self._count = 0
        stored = state_file.load(path, RequestModesBody.decode)
        if stored is not None:
            self._modes.update({topic: dict(groups) for topic, groups in stored.modes.items()})
            self._count = sum(map(len, self._modes.values()))

    def put(self, mode: RequestModeBody) -> None:
        limit = self._config.max_request_modes
        if self._count >= limit and mode.group not in self._modes.get(mode.topic, ()):
            raise LimitReached(
                f"no request mode for {mode.topic} and {mode.group}: there are {self._count}, "
                f"and maxRequestModes allows {limit}"
            )
        self._count += mode.group not in self._modes.get(mode.topic, ())
        self._modes.setdefault(mode.topic, {})[mode.group] = mode
        self.changed()

    def adopt(self, table: RequestModesBody) -> None:
        """Take over the modes of a slave's master."""
        modes = {topic: dict(groups) for topic, groups in table.modes.items()}
        if modes != self._modes:
            self._modes = modes
            self._count = sum(map(len, modes.values()))
            self.changed()

    def find(self, topic: str, group: str) -> RequestModeBody:
        """What was set, or the default. Retry topics are always pulled: a client pops them with the topic itself."""
        found = self._modes.get(topic, {}).get(group)
        if found is not None:
            return found
        if topic.startswith(RETRY_PREFIX) or self._config.default_message_request_mode is RequestMode.PULL:
            return RequestModeBody(topic, group)
        return RequestModeBody(topic, group, RequestMode.POP, self._config.default_pop_share_queue_num)

    def __len__(self) -> int:
        return self._count

    def body(self) -> RequestModesBody:
        """All modes as they are now."""
        return RequestModesBody({topic: dict(groups) for topic, groups in self._modes.items()})

    def encoded(self) -> bytes:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        return partial(self.body().encode, pretty=True)
