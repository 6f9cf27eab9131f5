"""`Admin`: everything an operator can ask or do; and the same without await."""

from __future__ import annotations

from cosmodrome.admin.accounts import AccountsAdmin
from cosmodrome.admin.brokers import BrokersAdmin
from cosmodrome.admin.clients import ClientsAdmin
from cosmodrome.admin.dead_letters import DeadLettersAdmin
from cosmodrome.admin.doctor import Diagnosis, diagnose
from cosmodrome.admin.facts import SAMPLE_SECONDS, FactsAdmin
from cosmodrome.admin.groups import GroupsAdmin
from cosmodrome.admin.messages import MessagesAdmin
from cosmodrome.admin.name_servers import NameServersAdmin
from cosmodrome.admin.raft import RaftAdmin
from cosmodrome.admin.topics import TopicsAdmin
from cosmodrome.client.blocking.face import Face, like, shows, waits


class Admin(
    AccountsAdmin,
    FactsAdmin,
    DeadLettersAdmin,
    TopicsAdmin,
    GroupsAdmin,
    ClientsAdmin,
    BrokersAdmin,
    NameServersAdmin,
    MessagesAdmin,
    RaftAdmin,
):
    """An operator's client: it asks and changes clusters, and returns dataclasses.

        async with Admin("127.0.0.1:9876") as admin:
            for queue in (await admin.topic_status("orders")).queues:
                ...

    `broker` is a broker's name or address, `cluster` a cluster's name; without both, all brokers are meant. Brokers
    are asked at once, with a bound. One that does not answer stands with the reason in the result's `unanswered`.
    """

    async def diagnose(self, *, sample_seconds: float = SAMPLE_SECONDS) -> Diagnosis:
        """Look for what is wrong with the clusters; groups are looked at twice, `sample_seconds` apart."""
        return diagnose(await self.facts(sample_seconds=sample_seconds))


class BlockingAdmin(Face[Admin]):
    """`Admin` without await."""

    @like(Admin)
    def __init__(self) -> None: ...

    account_versions = waits(Admin.account_versions)
    accounts = waits(Admin.accounts)
    add_write_permission = waits(Admin.add_write_permission)
    now_ms = shows(Admin, lambda behind: behind.now_ms)
    all_members = waits(Admin.all_members)
    all_producers = waits(Admin.all_producers)
    all_progress = waits(Admin.all_progress)
    broker_config = waits(Admin.broker_config)
    broker_epochs = waits(Admin.broker_epochs)
    broker_runtime = waits(Admin.broker_runtime)
    clean_expired_queues = waits(Admin.clean_expired_queues)
    clean_unused_topics = waits(Admin.clean_unused_topics)
    clone_offsets = waits(Admin.clone_offsets)
    cluster = waits(Admin.cluster)
    consume_directly = waits(Admin.consume_directly)
    consumer_status = waits(Admin.consumer_status)
    consumers = waits(Admin.consumers)
    delete_expired_logs = waits(Admin.delete_expired_logs)
    delete_group = waits(Admin.delete_group)
    delete_kv = waits(Admin.delete_kv)
    delete_topic = waits(Admin.delete_topic)
    dead_letter_groups = waits(Admin.dead_letter_groups)
    dead_letters = waits(Admin.dead_letters)
    diagnose = waits(Admin.diagnose)
    facts = waits(Admin.facts)
    health = waits(Admin.health)
    group_configs = waits(Admin.group_configs)
    group_progress = waits(Admin.group_progress)
    ha_status = waits(Admin.ha_status)
    kv = waits(Admin.kv)
    lateness = waits(Admin.lateness)
    message_at = waits(Admin.message_at)
    message_by_id = waits(Admin.message_by_id)
    messages_between = waits(Admin.messages_between)
    messages_by_key = waits(Admin.messages_by_key)
    messages_by_unique_key = waits(Admin.messages_by_unique_key)
    namesrv_config = waits(Admin.namesrv_config)
    producers = waits(Admin.producers)
    queue_messages = waits(Admin.queue_messages)
    put_group = waits(Admin.put_group)
    put_groups = waits(Admin.put_groups)
    put_kv = waits(Admin.put_kv)
    put_topic = waits(Admin.put_topic)
    put_topics = waits(Admin.put_topics)
    queue_ends = waits(Admin.queue_ends)
    queue_entries = waits(Admin.queue_entries)
    queue_offset_at = waits(Admin.queue_offset_at)
    raft_status = waits(Admin.raft_status)
    reset_offset = waits(Admin.reset_offset)
    running_info = waits(Admin.running_info)
    set_broker_config = waits(Admin.set_broker_config)
    set_consume_mode = waits(Admin.set_consume_mode)
    set_namesrv_config = waits(Admin.set_namesrv_config)
    stats = waits(Admin.stats)
    redrive = waits(Admin.redrive)
    targets = waits(Admin.targets)
    timer_metrics = waits(Admin.timer_metrics)
    topic_clusters = waits(Admin.topic_clusters)
    transfer_leader = waits(Admin.transfer_leader)
    topic_config = waits(Admin.topic_config)
    topic_configs = waits(Admin.topic_configs)
    topic_groups = waits(Admin.topic_groups)
    topic_names = waits(Admin.topic_names)
    topic_route = waits(Admin.topic_route)
    topic_status = waits(Admin.topic_status)
    wipe_write_permission = waits(Admin.wipe_write_permission)
