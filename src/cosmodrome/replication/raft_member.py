"""One member of a Raft group of brokers, whole: its folder, its node, and its connections to the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from cosmodrome.config import NetConfig
from cosmodrome.errors import ConfigError
from cosmodrome.raft.entry_files import LOG_STATE, DiskFiles
from cosmodrome.raft.entry_log import DATA_FILE_BYTES, EntryLog
from cosmodrome.raft.messages import Message
from cosmodrome.raft.node import Node
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.storage import HardStateFile
from cosmodrome.replication.raft_transport import RaftTransport

log = logging.getLogger(__name__)

VOTE = "term-and-vote"


class RaftMember:
    """A member on disk from its making, and in the group while `run` lasts.

    member = RaftMember(folder, group="RaftNode00", member="n0", peers={"n0": "host:40911", …}, now_ms=…)
    member.node.on_commit = …
    await member.run()          # until stop(); raises when the disk fails
    member.close()
    """

    def __init__(
        self,
        folder: Path,
        *,
        group: str,
        member: str,
        peers: Mapping[str, str],
        now_ms: Callable[[], int],
        file_size: int = DATA_FILE_BYTES,
        options: RaftOptions | None = None,
        bind_host: str = "",
        net: NetConfig | None = None,
    ) -> None:
        """Open the folder of a member, or make it; StoreError if it cannot be used.

        `peers` are the addresses of all members by id. They are the members of a new group; later the log says who the
        members are.
        """
        if member not in peers:
            raise ConfigError(f"dLegerSelfId {member!r} is not among dLegerPeers: {', '.join(sorted(peers))}")
        files = DiskFiles(folder)
        try:
            # The vote is made first: with a log but without a vote, a member may have voted.
            self._vote = HardStateFile(folder / VOTE, is_new=not (folder / LOG_STATE).exists())
            try:
                self.log = EntryLog(files, Membership.of(peers), file_size=file_size, now_ms=now_ms)
            except BaseException:
                self._vote.close()
                raise
        except BaseException:
            files.close()
            raise
        self._is_listening = False
        self.node = Node(member, self.log, self._vote, send=self._send, options=options)
        self._transport = RaftTransport(group, member, peers, self.node.receive, bind_host=bind_host, config=net)

    def _send(self, message: Message) -> None:
        self._transport.send(message)

    async def listen(self) -> None:
        """Listen for the other members, before `run`; CannotListen."""
        await self._transport.start()
        self._is_listening = True

    async def run(self) -> None:
        """Take part in the group until `stop`; CannotListen, and what the disk says when it fails."""
        if not self._is_listening:
            await self.listen()
        try:
            await self.node.run()
        finally:
            await asyncio.shield(self._transport.close())

    def stop(self) -> None:
        """End `run`."""
        self.node.stop()

    def close(self) -> None:
        """Close the files, when nobody reads them any more."""
        self.log.close()
        self._vote.close()
