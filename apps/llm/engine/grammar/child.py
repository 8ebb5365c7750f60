"""A program that compiles grammars in processes that can be ended, and keeps their matchers.

`pool` starts it, and speaks with it:
1. The first process loads the tokenizer, then only forks: a process for each grammar, which shares the tokenizer's
   memory. Standard input is a socket of packets: `fork` with the new process's own socket, answered by a number, and
   `kill NUMBER`.
2. A forked process reads one grammar and answers with the first token mask, or why there is none, and how many MiB it
   has grown by. After that it is sent tokens, each for one of its matchers, and answers with the mask that follows.

Compiling takes at most so much memory and processor time; a process that exceeds it dies, and its socket closes. All
processes end with the one that started them. This program imports llguidance alone, so it starts soon and stays small.
"""

import array
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

import llguidance

LENGTH = struct.Struct("<I")
TAKE = struct.Struct("<Ii")
"""A matcher, and how many tokens it takes, which follow as int32; DROP: the matcher is no longer needed."""
DROP = -1
REPLY = struct.Struct("<IBI")
"""A matcher, what became of it, and the length of what follows."""
GOES_ON, COMPLETE, FAILED = range(3)
"""A mask follows; nothing follows; the reason follows."""
PR_SET_PDEATHSIG = 1


class Matchers:
    """The matchers of one grammar, by number."""

    def __init__(self, pristine: llguidance.LLMatcher, vocab_size: int):
        self._pristine, self._mask_bytes = pristine, 4 * -(-vocab_size // 32)
        self._open: dict[int, llguidance.LLMatcher] = {}

    def take(self, number: int, tokens: list[int]) -> tuple[int, bytes]:
        """What follows after a matcher has taken tokens: GOES_ON with a mask, COMPLETE, or FAILED with the reason."""
        matcher = self._open.get(number)
        if matcher is None:
            matcher = self._open[number] = self._pristine.deep_copy()
        for token in tokens:
            matcher.consume_token(token)
        mask = b"" if matcher.is_stopped() else matcher.compute_bitmask()
        if matcher.is_error():
            return FAILED, matcher.get_error().encode()
        return (GOES_ON, mask[: self._mask_bytes]) if mask else (COMPLETE, b"")

    def first(self) -> tuple[int, bytes]:
        """The mask of every answer's first token, or why there is none."""
        mask = self._pristine.compute_bitmask()
        if self._pristine.is_error():
            return FAILED, json.dumps([None, self._pristine.get_error()]).encode()
        return GOES_ON, mask[: self._mask_bytes]

    def drop(self, number: int) -> None:
        self._open.pop(number, None)


def compiled(task: dict[str, Any], tokenizer: llguidance.LLTokenizer) -> tuple[llguidance.LLMatcher | None, str]:
    """The grammar's matcher, or None and a JSON list of what is wrong: the part that is at fault (None: no single one)
    and why."""
    limits = llguidance.LLParserLimits(**task["limits"])
    matcher = llguidance.LLMatcher(tokenizer, task["grammar"], log_level=0, limits=limits)
    if not matcher.is_error():
        return matcher, ""
    for i, part in enumerate(task["parts"]):
        alone = llguidance.LLMatcher(tokenizer, part, log_level=0, limits=limits)
        if alone.is_error():
            return None, json.dumps([i, alone.get_error()])
    return None, json.dumps([None, matcher.get_error()])


def serve_grammar(work: socket.socket, tokenizer: llguidance.LLTokenizer, vocab_size: int) -> None:
    """Compile the grammar that comes in, then serve its matchers until the socket closes."""
    task = json.loads(_exactly(work, LENGTH.unpack(_exactly(work, LENGTH.size))[0]))
    before = _bound_memory(task["memory"])
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + task["cpu_s"]) + 1, hard))
    pristine, problem = compiled(task, tokenizer)
    if pristine is None:
        _reply(work, 0, FAILED, problem.encode())
        return
    matchers = Matchers(pristine, vocab_size)
    state, payload = matchers.first()
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    grown = _bound_memory(task["memory"] // 4) - before
    _reply(work, grown >> 20, state, payload)
    while state == GOES_ON:
        number, count = TAKE.unpack(_exactly(work, TAKE.size))
        if count == DROP:
            matchers.drop(number)
        else:
            tokens = struct.unpack(f"<{count}i", _exactly(work, 4 * count))
            _reply(work, number, *matchers.take(number, list(tokens)))


def serve_forks(control: socket.socket, tokenizer: llguidance.LLTokenizer, vocab_size: int) -> None:
    """Fork and kill processes until the socket closes; then none is left."""
    running, number = dict[int, int](), 0
    try:
        while True:
            message, descriptors = _received(control)
            if not message:
                return
            running = {id: child for id, child in running.items() if not os.waitpid(child, os.WNOHANG)[0]}
            what, *of = message.split()
            if what == b"fork":
                child = os.fork()
                if child == 0:
                    _become_grammar(control, socket.socket(fileno=descriptors[0]), tokenizer, vocab_size)
                os.close(descriptors[0])
                number += 1
                running[number] = child
                control.send(str(number).encode())
            elif (child := running.pop(int(of[0]), 0)) > 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    finally:
        for child in running.values():
            os.kill(child, signal.SIGKILL)


def _become_grammar(
    control: socket.socket, work: socket.socket, tokenizer: llguidance.LLTokenizer, vocab_size: int
) -> None:
    """What a forked process does, to its end."""
    try:
        _die_with_parent()
        control.close()
        for line in (1, 2):  # a library's last words are of no use, and may be a client's
            os.dup2(os.open(os.devnull, os.O_WRONLY), line)
        _last_to_survive()
        serve_grammar(work, tokenizer, vocab_size)
    except (EOFError, OSError, MemoryError):
        pass
    finally:
        os._exit(0)


def _bound_memory(room: int) -> int:
    """Allow this many bytes more than now, of which this is the number. Beyond that, allocating aborts the process."""
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    used = pages * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return used


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died before
        os._exit(0)


def _last_to_survive() -> None:
    """Where memory runs out all the same, this process goes first."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass


def _received(control: socket.socket) -> tuple[bytes, list[int]]:
    """A packet and the descriptors that came with it."""
    message, ancillary, _, _ = control.recvmsg(64, socket.CMSG_LEN(array.array("i", [0]).itemsize))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return message, list(descriptors)


def _exactly(work: socket.socket, length: int) -> bytes:
    """The next bytes. Raises EOFError when the other side has closed."""
    read = bytearray()
    while len(read) < length:
        part = work.recv(length - len(read))
        if not part:
            raise EOFError
        read += part
    return bytes(read)


def _reply(work: socket.socket, number: int, state: int, payload: bytes) -> None:
    work.sendall(REPLY.pack(number, state, len(payload)) + payload)


def main() -> None:
    """Arguments: the tokenizer file's descriptor, the size of the model's vocabulary and of the tokenizer's, and the
    tokens that end an answer."""
    file, vocab_size, tokens, *eos = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; who started this closes it
    with open(file) as text:
        tokenizer = llguidance.LLTokenizer(text.read(), n_vocab=tokens, eos_token=eos or None)
    control = socket.socket(fileno=0)
    control.send(b"ready")
    serve_forks(control, tokenizer, vocab_size)


if __name__ == "__main__":
    main()
