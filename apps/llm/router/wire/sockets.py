"""The sockets of both sides: with CURVE, bounded, and without reconnection."""

import zmq
import zmq.utils.z85

from apps.llm.router.wire.messages import MOST_BYTES, Endpoint

UNSENT = 64
"""Most messages that a socket keeps for a peer which does not read. Few: they may be large."""
UNREAD = 1000
"""Most that a router's socket keeps until it reads. Many: once it is full, the router does not answer HEARTBEAT_MS."""
HEARTBEAT_MS, SILENT_MS = 500, 3000
"""How often a replica's sockets ask a silent router whether it is there, and how long they wait for its answer."""
HANDSHAKE_MS = 10_000
ZAP = "inproc://zeromq.zap.01"  # RFC 27
DOMAIN = b"podslice"

Socket = zmq.Socket[bytes]
BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def _bounded(context: "zmq.Context[Socket]", kind: int, address: str) -> Socket:
    made = context.socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.IPV6, "[" in address)
    made.setsockopt(zmq.SNDHWM, UNSENT)
    made.setsockopt(zmq.RCVHWM, UNREAD if kind == zmq.DEALER else UNSENT)
    made.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES + 1024)
    made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    return made


def listening(context: "zmq.Context[Socket]", host: str, keys: tuple[bytes, bytes]) -> tuple[Socket, Socket, str]:
    """A replica's socket on a free port, the one on which it is asked who may connect, and the first one's address.

    Raises:
        ValueError: the host is not one of this machine.
    """
    asked = context.socket(zmq.REP)
    asked.bind(ZAP)
    address = f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*"
    served = _bounded(context, zmq.ROUTER, address)
    served.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending fails to who has gone, and to who does not read
    served.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    served.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
    served.curve_publickey, served.curve_secretkey = keys
    served.setsockopt(zmq.CURVE_SERVER, 1)
    served.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    try:
        served.bind(address)
    except zmq.ZMQError as error:
        served.close()
        asked.close()
        raise ValueError(f"cannot listen on {host} ({zmq.strerror(error.errno or 0)})") from error
    return served, asked, str(served.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def answer_zap(asked: Socket, allowed: bytes) -> None:
    """Let those connect whose public key, in Z85, is `allowed`."""
    version, number, _, _, _, mechanism, *credentials = asked.recv_multipart()
    known = mechanism == b"CURVE" and credentials == [zmq.utils.z85.decode(allowed)]
    status, text = (b"200", b"OK") if known else (b"400", b"unknown key")
    asked.send_multipart([version, number, status, text, b"", b""])


def connected(context: "zmq.Context[Socket]", endpoint: Endpoint) -> tuple[Socket, Socket]:
    """A router's socket, which connects now and once, and the one that tells what becomes of the connection."""
    made = _bounded(context, zmq.DEALER, endpoint.address)
    try:
        made.setsockopt(zmq.RECONNECT_IVL, -1)
        made.curve_serverkey = endpoint.server_key
        made.curve_publickey, made.curve_secretkey = endpoint.client_keys
        monitor = made.get_monitor_socket(BROKEN | FAILED)
        made.connect(endpoint.address)
    except BaseException:
        made.close()
        raise
    return made, monitor
