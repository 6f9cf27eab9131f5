"""docs/durability.md, "Hostile peers": every bound of what peers may ask for, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from cosmodrome import config
from cosmodrome.config import BrokerConfig, NetConfig

TABLE_ROW = re.compile(r"^\|[^|]*\| `(\w+)` \| (\d+)")
NET_BOUNDS = {
    *("max_unfinished_bytes", "frame_timeout_ms", "max_unsent_bytes", "max_waiting_bytes"),
    *("max_connections", "max_connections_per_host"),
}


def test_the_table_has_every_bound_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "durability.md").read_text()
    section = text[text.index("## Hostile peers") : text.index("## How it is proven")]
    told = {match[1]: int(match[2]) for line in section.splitlines() if (match := TABLE_ROW.match(line))}
    broker, net = BrokerConfig(), NetConfig()
    keys = {name: key for one in (BrokerConfig, NetConfig) for key, name in one.attributes_by_key().items()}
    ours = {keys[name]: getattr(broker, name) for name in config._BROKER_BOUNDS}
    ours |= {keys[name]: getattr(net, name) for name in NET_BOUNDS}
    assert told == ours
    assert f"`loopBusyWarningMs` ({net.loop_busy_warning_ms})" in section
