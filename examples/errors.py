"""What can go wrong with a send, and what a program can do about each."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import BrokerError, CallTimeout, Closed, InvalidMessage, Message, MessageQueue, Producer, SendFailed

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def send(producer: Producer, message: Message, queue: MessageQueue | None = None) -> str:
    try:
        result = await producer.send(message, queue)
    except InvalidMessage as error:  # a ValueError: the same message is refused every time
        return f"mend the {error.field} of the message for {error.topic!r}: {error}"
    except SendFailed as error:  # every try failed: the last reason is also error.__cause__
        brokers = sorted({attempt.broker for attempt in error.attempts})
        return f"keep it for later, code {error.code}, brokers {brokers}"
    except (CallTimeout, ConnectionError) as error:  # of a chosen queue; it may be stored
        return f"unknown: {type(error).__name__}"
    except BrokerError as error:  # a refusal that no further try changes
        return f"refused with code {error.code}: {error.remark}"
    except Closed:
        return "too late"
    return f"{result.status}"


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        print(await send(producer, Message("ex-errors", b"1")))
        print(await send(producer, Message("ex-errors", b"1", tags="paid\x01")))
        print(await send(producer, Message("ex-errors", b"1"), MessageQueue("ex-errors", "broker-z", 0)))
        try:
            await producer.send(Message("ex-errors", b"1"), MessageQueue("ex-errors", "broker-z", 0))
        except OSError as error:  # what fails in a network is known to Python: a ConnectionError or a TimeoutError
            print(type(error).__name__, isinstance(error, ConnectionError))
    print(await send(producer, Message("ex-errors", b"1")))


asyncio.run(main())
