"""Cosmodrome's own daemons, started through the CLI as a user would."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from interop.apache import PATIENT, cluster_info, started_or_stopped, wait_registered
from interop.child import Child, free_port
from interop.guards import Guard

READY_TIMEOUT_S = 90
HOST = "127.0.0.1"

_BROKER_NAME = re.compile(rb'"brokerName":"([^"]+)"')


class CosmodromeUp(Child):
    """`cosmodrome up`: name server and broker in one process, serving once constructed."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        namesrv_port, broker_port = free_port(), free_port(before=2, after=1)
        self.namesrv = f"{HOST}:{namesrv_port}"
        self.address = f"{HOST}:{broker_port}"
        words = ["up", "--data", str(home / "data"), "--host", HOST, "--namesrv-port", str(namesrv_port)]
        words += ["--broker-port", str(broker_port), "--console-port", "0", "-c", str(_config_file(home, PATIENT))]
        super().__init__("cosmodrome up", [_cosmodrome(), *words], home / "stderr.log")
        started_or_stopped(self, self._wait)

    def _wait(self) -> None:
        self.wait_line("ready", READY_TIMEOUT_S)
        found = _BROKER_NAME.search(cluster_info(self.namesrv))
        if found is None:
            raise self.error("said ready, but its name server knows no broker")
        self.broker_name = found[1].decode()


class CosmodromeNameServer(Child):
    """`cosmodrome namesrv`, answering once constructed."""

    def __init__(self, home: Path, extra: Mapping[str, object] | None = None, guard: Guard | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port, guard = free_port(), guard or Guard()
        extra = {**(extra or {}), **guard.our_tls()}
        self.address = f"{HOST}:{port}"
        words = ["namesrv", "--host", HOST, "--port", str(port), "--kv-config", str(home / "kvConfig.json")]
        words += ["-c", str(_config_file(home, extra))] if extra else []
        super().__init__("cosmodrome namesrv", [_cosmodrome(), *words], home / "stderr.log")
        started_or_stopped(self, lambda: wait_registered(self, self.address, tls=guard.tls()))


class CosmodromeBroker(Child):
    """`cosmodrome broker` with Apache's configuration keys, in the name server's cluster table once constructed."""

    def __init__(
        self,
        namesrv: str,
        home: Path,
        name: str = "cosmodrome-broker",
        extra: Mapping[str, object] | None = None,
        guard: Guard | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        guard = guard or Guard()
        config = {"brokerName": name, "brokerClusterName": "DefaultCluster", "brokerId": 0, "brokerIP1": HOST}
        pairs = {**config, "listenPort": free_port(before=2, after=1), **PATIENT, **(extra or {})}
        pairs |= guard.our_config(home)
        self.address = f"{HOST}:{pairs['listenPort']}"
        self.broker_name = name
        words = ["broker", "-n", namesrv, "-c", str(_config_file(home, pairs)), "--store", str(home / "store")]
        super().__init__("cosmodrome broker", [_cosmodrome(), *words], home / "stderr.log")
        started_or_stopped(self, lambda: wait_registered(self, namesrv, name, tls=guard.tls()))


def _config_file(home: Path, pairs: Mapping[str, object]) -> Path:
    file = home / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in pairs.items()))
    return file


def _cosmodrome() -> str:
    """The command installed beside the Python that runs the tests."""
    return str(Path(sys.executable).with_name("cosmodrome"))
