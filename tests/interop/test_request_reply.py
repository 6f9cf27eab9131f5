"""Request and reply between Apache's Java clients through our broker."""

from collections.abc import Callable

import pytest

from interop.lab import Cluster, Lab
from interop.messages import Load
from interop.setup import CLIENT_VERSIONS

COUNT = 5


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_every_java_request_gets_its_own_reply(
    lab: Lab, ours: Cluster, fresh: Callable[[str], str], version: str
) -> None:
    topic, group = fresh("topic"), fresh("group")
    lab.run(version, "Produce", ours, {**Load(topic, 1).java_arguments(), "group": f"{group}-first"})
    words = {"topic": topic, "group": group, "count": COUNT}
    answers = lab.run(version, "Request", ours, words).messages
    assert [(line["index"], line["answer"]) for line in answers] == [
        (index, f"re: question-{index}") for index in range(COUNT)
    ]
