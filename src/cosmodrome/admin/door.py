"""`Admin`: everything an operator can ask or do; and the same without await."""

from __future__ import annotations

from cosmodrome.admin.brokers import BrokersAdmin
from cosmodrome.admin.clients import ClientsAdmin
from cosmodrome.admin.groups import GroupsAdmin
from cosmodrome.admin.topics import TopicsAdmin
from cosmodrome.client.blocking.face import Face, like, waits


class Admin(TopicsAdmin, GroupsAdmin, ClientsAdmin, BrokersAdmin):
    """An operator's client: it asks and changes clusters, and returns dataclasses.

        async with Admin("127.0.0.1:9876") as admin:
            for queue in (await admin.topic_status("orders")).queues:
                ...

    `broker` is a broker's name or address, `cluster` a cluster's name; without both, all brokers are meant. Brokers
    are asked at once, with a bound. One that does not answer stands with the reason in the result's `unanswered`.
    """


class BlockingAdmin(Face[Admin]):
    """`Admin` without await."""

    @like(Admin)
    def __init__(self) -> None: ...

    all_producers = waits(Admin.all_producers)
    all_progress = waits(Admin.all_progress)
    broker_config = waits(Admin.broker_config)
    broker_runtime = waits(Admin.broker_runtime)
    cluster = waits(Admin.cluster)
    consumers = waits(Admin.consumers)
    group_configs = waits(Admin.group_configs)
    group_progress = waits(Admin.group_progress)
    producers = waits(Admin.producers)
    targets = waits(Admin.targets)
    topic_configs = waits(Admin.topic_configs)
    topic_names = waits(Admin.topic_names)
    topic_route = waits(Admin.topic_route)
    topic_status = waits(Admin.topic_status)
