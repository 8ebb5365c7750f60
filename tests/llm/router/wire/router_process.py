"""A router in a process of its own: `ENDPOINT`. Has one long request, and prints a line when it runs."""

import sys
import time

import msgspec

from apps.llm.router.wire.messages import Endpoint
from tests.llm.router.wire.asking import Connected, request, start

if __name__ == "__main__":
    connected = Connected(msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=Endpoint))
    reader = start(connected.engine, request(limit=128), request(limit=128))
    reader.began.wait()
    print("runs", flush=True)
    time.sleep(3600)
