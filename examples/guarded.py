"""Sign requests with an access key, and speak TLS: for brokers with ACL and TLS."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import AclHook, ClientConfig, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ACCESS_KEY = os.environ.get("ROCKETMQ_ACCESS_KEY", "orders-app")
SECRET_KEY = os.environ.get("ROCKETMQ_SECRET_KEY", "12345678")
CA_FILE = os.environ.get("ROCKETMQ_CA_FILE", "")


async def main() -> None:
    config = ClientConfig(tls=bool(CA_FILE), tls_ca_file=CA_FILE)
    signed = AclHook(ACCESS_KEY, SECRET_KEY)  # the secret itself never travels
    async with Producer("shop", NAMESRV, rpc_hooks=[signed], config=config) as producer:
        print("let in:", (await producer.send(Message("ex-guarded", b"1"))).status)


asyncio.run(main())
