"""A member of a Raft group in a process of its own: `python -m tests.system.raft_process FOLDER MEMBER ID=ADDRESS…`.

A line on stdin is proposed. Lines on stdout say what came of it, and what the member is:

    ack INDEX LINE        committed there
    no LINE               refused, nothing was written
    unknown LINE          the leadership ended before it was committed
    role ROLE TERM        from now on
    commit INDEX          committed up to there
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from cosmodrome.raft.errors import Refused
from cosmodrome.raft.node import LeadershipLost, RoleChange
from cosmodrome.raft.options import RaftOptions
from cosmodrome.replication.raft_member import RaftMember

FILE_BYTES = 64 * 1024
OPTIONS = RaftOptions(heartbeat_ms=100, election_min_ms=500, election_max_ms=1_000, retry_ms=200)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def opened(folder: Path, name: str, peers: dict[str, str]) -> RaftMember:
    return RaftMember(
        folder,
        group="system",
        member=name,
        peers=peers,
        now_ms=lambda: time.time_ns() // 1_000_000,
        file_size=FILE_BYTES,
        options=OPTIONS,
    )


async def propose(member: RaftMember, line: str) -> None:
    try:
        index = member.node.propose([line.encode()])
        await member.node.wait(index)
    except LeadershipLost:
        say(f"unknown {line}")
    except Refused:
        say(f"no {line}")
    else:
        say(f"ack {index} {line}")


async def main(folder: str, name: str, *peers: str) -> None:
    member = opened(Path(folder), name, dict(peer.split("=", 1) for peer in peers))

    def on_role(change: RoleChange) -> None:
        say(f"role {change.role.value} {change.term}")

    member.node.on_role = on_role
    member.node.on_commit = lambda index: say(f"commit {index}")
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    running = asyncio.ensure_future(member.run())
    proposals = set()
    while line := await lines.readline():
        task = asyncio.ensure_future(propose(member, line.decode().strip()))
        proposals.add(task)
        task.add_done_callback(proposals.discard)
    member.stop()
    await running
    await asyncio.gather(*proposals)
    member.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
