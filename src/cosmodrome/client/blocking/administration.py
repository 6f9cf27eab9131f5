"""Operations that every client offers beside its own, without await."""

from __future__ import annotations

from cosmodrome.client import administration
from cosmodrome.client.blocking.face import waits


class Administration:
    """`client.administration.Administration` without await."""

    create_topic = waits(administration.Administration.create_topic)
    earliest_msg_store_time = waits(administration.Administration.earliest_msg_store_time)
    max_offset = waits(administration.Administration.max_offset)
    min_offset = waits(administration.Administration.min_offset)
    query_message = waits(administration.Administration.query_message)
    search_offset = waits(administration.Administration.search_offset)
    view_message = waits(administration.Administration.view_message)
