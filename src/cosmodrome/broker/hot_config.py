"""Settings that an operator may change while a broker runs, until its next start.

No key is here that names a file, an address or a program, that bounds what peers may ask for, or that only a start
obeys: over the wire, the first are a way in, and the last would be a promise that is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cosmodrome.config import BrokerConfig, StoreConfig
from cosmodrome.errors import ConfigError, InvalidParameter, NoPermission

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

BROKER_KEYS = frozenset(
    {
        "allowRecallWhenBrokerNotWriteable",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "filterSupportRetry",
        "longPollingEnable",
        "notifyConsumerIdsChangedEnable",
        "popFromRetryProbability",
        "popResponseReturnActualRetryTopic",
        "recallMessageEnable",
        "rejectTransactionMessage",
        "serverLoadBalancerEnable",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "storeReplyMessageEnable",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "useServerSideResetOffset",
    }
)
STORE_KEYS = frozenset({"deleteWhen", "fileReservedTime"})
HOT_KEYS = BROKER_KEYS | STORE_KEYS


def change_config(broker: Broker, properties: Mapping[str, str]) -> None:
    """Obey new values from now on, all of them or none; a refusal names the key."""
    for key in properties:
        if key not in HOT_KEYS:
            raise NoPermission(_reason(key))
    try:
        config = broker.config.with_properties(properties)
        store_config = broker.store_config.with_properties(properties)
    except ConfigError as error:
        raise InvalidParameter(str(error)) from error
    broker.config, broker.store_config = config, store_config
    broker.topics.use_config(config)
    broker.groups.use_config(config)
    broker.transactions.use_config(config, store_config.file_reserved_time)
    broker.store.cleaner.retention.use_config(store_config)
    for key, value in properties.items():
        log.warning("broker config changed: key=%s value=%s; the next start reads the file again", key, value)


def _reason(key: str) -> str:
    known = {**BrokerConfig.attributes_by_key(), **StoreConfig.attributes_by_key()}
    if key in known:
        return (
            f"{key} cannot be changed while the broker runs: set it in the broker's file and start the broker again. "
            f"These can be changed: {', '.join(sorted(HOT_KEYS))}"
        )
    return f"{key} cannot be changed over the wire; these can: {', '.join(sorted(HOT_KEYS))}"
