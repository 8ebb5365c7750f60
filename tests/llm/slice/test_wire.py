"""Messages over TCP, however the network cuts them."""

import socket
import threading

from apps.llm.engine.hosts.rank_workers import RankWorkers
from apps.llm.engine.hosts.wire import NO_DP_RANK, Connection, Listener, MessageKind, message


def test_what_comes_right_behind_the_greeting_is_heard() -> None:
    """A host that loads a small model is done before the engine has read who it is."""
    listener = Listener("127.0.0.1")
    with socket.create_connection(listener.address) as host:
        host.sendall(message(MessageKind.HELLO, (0, NO_DP_RANK), listener.secret) + message(MessageKind.DONE, (7,)))
        hosts = RankWorkers(listener.accept([(0, NO_DP_RANK)], 60, 60), range(1), 60)
        try:
            reports: list[list[int]] = []
            reader = threading.Thread(target=lambda: reports.append(hosts.reports()), daemon=True)
            reader.start()
            reader.join(60)
            assert reports == [[7]]
        finally:
            hosts.close()
            listener.close()


def test_messages_cut_anywhere_come_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        connection = Connection(server.accept()[0], timeout_s=60)
    sent = message(MessageKind.STEP, (1, 2, 3, 4, 5), b"step") + message(MessageKind.DONE, (5,))

    def dribble() -> None:
        for byte in sent:
            theirs.sendall(bytes([byte]))
        theirs.close()

    threading.Thread(target=dribble, daemon=True).start()
    found: list[tuple[MessageKind, tuple[int, ...], bytes]] = []
    while len(found) < 2:
        found += connection.receive()
    assert found == [(MessageKind.STEP, (1, 2, 3, 4, 5), b"step"), (MessageKind.DONE, (5, 0, 0, 0, 0), b"")]
    connection.socket.close()


def test_who_sends_something_else_is_sent_away() -> None:
    """Rubbish, a wrong secret, and a length that would fill the memory; the host that comes then is taken."""
    listener = Listener("127.0.0.1")
    strangers = [b"GET / HTTP/1.1\r\n\r\n" * 4, message(MessageKind.HELLO, (0, NO_DP_RANK), b"x" * 16), b"\xff" * 64]
    sockets = []
    for said in strangers:
        sockets.append(socket.create_connection(listener.address))
        sockets[-1].sendall(said)
    sockets.append(socket.create_connection(listener.address))
    sockets[-1].sendall(message(MessageKind.HELLO, (0, NO_DP_RANK), listener.secret))
    (connection,) = listener.accept([(0, NO_DP_RANK)], 60, 60)
    assert connection.socket.getpeername() == sockets[-1].getsockname()
    for sock in (*sockets, connection.socket):
        sock.close()
    listener.close()
