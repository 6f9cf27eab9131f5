"""The pytest plugin: fixtures with a real RocketMQ in the test's own process. `docs/testing.md` shows them.

pytest loads this in every run of everybody who has installed the package, so it imports nothing of it before a test
asks. That is also why it does not live below `cosmodrome`, whose own imports would come with it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncio

    from cosmodrome.testing import AsyncCluster, Cluster

MARKER = "rocketmq(**options): options of cosmodrome.testing.cluster() for the rocketmq fixtures of this test"
# What pytest-asyncio says of a test in virtual time that has its mark, if only from the module.
_MARKED_ASYNCIO = "ignore:.*is marked with '@pytest.mark.asyncio':pytest.PytestWarning"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator[Cluster | AsyncCluster]:
    """A cluster for this test. An `async def` test gets its async face, any other its blocking one."""
    from cosmodrome.testing import cluster

    with cluster(**_options(request)) as made:
        yield made.as_async if inspect.iscoroutinefunction(request.function) else made


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator[Cluster]:
    """One cluster for the whole run, without options; give topics and groups names of their own."""
    from cosmodrome.testing import cluster

    with cluster() as made:
        yield made


@pytest.fixture
def rocketmq_virtual(request: pytest.FixtureRequest, _rocketmq_runner: asyncio.Runner) -> Iterator[AsyncCluster]:
    """A cluster for an `async def` test, both in virtual time, which passes only while everybody waits."""
    from cosmodrome.testing import cluster

    maker = cluster(**_options(request))
    made = _rocketmq_runner.run(maker.__aenter__())
    try:
        yield made
    finally:
        _rocketmq_runner.run(maker.__aexit__(None, None, None))


@pytest.fixture
def _rocketmq_runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    import asyncio

    from cosmodrome.testing import VirtualLoop

    if not hasattr(request.function, "_in_virtual_time"):
        pytest.fail("rocketmq_virtual is for async def tests; for others rocketmq has advance()", pytrace=False)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Tests in virtual time run on a loop of ours. Plugins that run coroutines see plain functions in their place."""
    made = yield
    for node in made if isinstance(made, list) else ():
        if (
            isinstance(node, pytest.Function)
            and "rocketmq_virtual" in node.fixturenames
            and inspect.iscoroutinefunction(node.obj)
        ):
            node.obj = _in_virtual_time(node, node.obj)
            node.add_marker(pytest.mark.filterwarnings(_MARKED_ASYNCIO))
    return made


def _in_virtual_time(node: pytest.Function, test: Any) -> Any:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        runner: Any = node.funcargs["_rocketmq_runner"]
        runner.run(test(**arguments))

    run._in_virtual_time = True  # type: ignore[attr-defined]
    return run


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of all marks; the nearest says what counts."""
    options: dict[str, Any] = {}
    for mark in request.node.iter_markers("rocketmq"):
        if mark.args:
            raise pytest.UsageError(f"mark rocketmq takes names: brokers=2, not {mark.args[0]!r}")
        options = dict(mark.kwargs) | options
    return options
