"""The groups in which cases are dealt out to the workers of a run."""

import re

_HERE = "tests/interop/"
_BEHAVIOUR = "tests/behaviour/"
_VERSION = re.compile(r"\[.*?(\d+\.\d+\.\d+)")
# All that ask the Apache brokers which they share. In one worker, so that of each generation one such broker runs.
_AT_APACHE = frozenset(
    f"{_HERE}test_{name}.py"
    for name in (
        *("apache_alone", "compared", "consumer_calls", "mqadmin", "our_client", "pull_consumers"),
        "queries_and_admin",
        *("spark_pipelines", "spark_sink", "spark_source", "statistics"),
    )
)
# Each case starts its own servers, may run anywhere, and mostly waits.
_BY_THEMSELVES = frozenset(f"{_HERE}test_{name}.py" for name in ("pop", "timers", "store_opening", "transactions"))


def group(nodeid: str) -> str:
    """Return the name of the group that a case belongs to; a group is run by one worker."""
    file = nodeid.partition("::")[0]
    if file in _AT_APACHE:
        return "at apache"
    version = _VERSION.search(nodeid)
    if file in _BY_THEMSELVES or version is None:
        return nodeid
    return f"{_BEHAVIOUR if file.startswith(_BEHAVIOUR) else file} {version[1]}"


def place(nodeid: str) -> int:
    """Return the place of a case's group: those that take longest come first."""
    file = nodeid.partition("::")[0]
    order = (file in _AT_APACHE, file.startswith(_BEHAVIOUR), "guarded" in file, file in _BY_THEMSELVES, True)
    return order.index(True)
