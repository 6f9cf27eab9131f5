"""What this package tests itself with, shipped so that you can test your own producers and consumers the same way."""

from __future__ import annotations

from cosmodrome.testing.broker_node import BrokerNode, ClusterError
from cosmodrome.testing.clock import FakeClock
from cosmodrome.testing.cluster import AsyncCluster, Cluster, TooLate, cluster
from cosmodrome.testing.faulty_disk import Fault, FaultyDisk, Killed, Kind, Moment, Mood
from cosmodrome.testing.loop import LoopClock, SeededLoop, VirtualLoop

__all__ = [
    "AsyncCluster",
    "BrokerNode",
    "Cluster",
    "ClusterError",
    "FakeClock",
    "Fault",
    "FaultyDisk",
    "Killed",
    "Kind",
    "LoopClock",
    "Moment",
    "Mood",
    "SeededLoop",
    "TooLate",
    "VirtualLoop",
    "cluster",
]
