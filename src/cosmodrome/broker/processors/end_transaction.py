"""What becomes of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.errors import InvalidParameter, ProtocolError
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag, parse_offset_msg_id
from cosmodrome.wire.requests import EndTransaction, ResumeCheckHalfMessage

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_UNDECIDED = 0


async def end_transaction(broker: Broker, _connection: Connection, command: Command) -> Command:
    """END_TRANSACTION: deliver a half message or drop it. While its producer is undecided, it will be asked again."""
    request = EndTransaction.decode(command)
    if request.commit_or_rollback in (SysFlag.COMMIT, SysFlag.ROLLBACK):
        await broker.transactions.end(request)
    elif request.commit_or_rollback != _UNDECIDED:
        raise InvalidParameter(
            f"commitOrRollback is {request.commit_or_rollback}; "
            f"write {SysFlag.COMMIT} to commit, {SysFlag.ROLLBACK} to roll back or {_UNDECIDED} for undecided"
        )
    return command.reply()


async def resume_check(broker: Broker, _connection: Connection, command: Command) -> Command:
    """RESUME_CHECK_HALF_MESSAGE: ask again about a transaction that was given up."""
    request = ResumeCheckHalfMessage.decode(command)
    try:
        _, _, physical_offset = parse_offset_msg_id(request.msg_id)
    except ProtocolError as error:
        raise InvalidParameter(str(error)) from error
    broker.transactions.resume(physical_offset)
    return command.reply()
