"""A request in progress, as the scheduler knows it, and its part in a step."""

import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import NamedTuple

from apps.llm.api import TokenRequest
from apps.llm.engine.fairness.accounts import Account
from apps.llm.engine.images.placed import PlacedImages
from apps.llm.engine.speculation.drafter import Drafter
from apps.llm.page_names import PageName, digests, page_name

UNREAD = -1  # a token that is sampled on the device but not yet read


@dataclass(eq=False)
class Sequence:
    """One request in progress."""

    request: TokenRequest
    arrival: int  # its number in the order of arrival
    limit: int  # ends at this many tokens, prompt and answer together
    tokens: list[int]  # the prompt, then the answer; UNREAD where still on the device
    prompt_len: int
    adapter: int = 0  # index of its LoRA adapter on the devices, from 1; 0: it has none
    images: PlacedImages | None = None  # in its prompt
    page_root: bytes = b""  # what the names of its pages begin with
    reusable: int = sys.maxsize  # leading tokens that may come from the prefix cache; later ones must be computed
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    hashes: list[PageName] = field(default_factory=list)  # names of its full pages, computed so far
    published: int = 0  # full pages published to the prefix cache
    stops: list[int] = field(default_factory=list)  # a step ends there at the latest, so that its state can be kept
    kept: int = 0  # tokens of its last state that is kept, or was when it came
    passed: PageName | None = None  # of the last state that it kept on its way
    slot: int | None = None  # its slot in the batch
    on_device: bool = False  # its last token was sampled in `slot`: the device has it
    needs_last_token: bool = False  # the tokens allowed next depend on the previous token (structured output)
    masked: Callable[[], bool] = lambda: True  # whether the tokens that are allowed next are known
    drafter: Drafter | None = None  # guesses its next tokens; None: no drafts
    cached_tokens: int = 0  # prompt tokens whose KV pages were found in the prefix cache
    entered_ns: int = 0  # when it first had a slot, by `time.monotonic_ns`; 0: not yet
    done: bool = False
    rank: tuple[int, bool, int] = field(init=False)  # order among its caller's sequences, lowest first
    charged: int = 0  # leading tokens that its caller was charged for elsewhere
    account: Account["Sequence"] = field(init=False, repr=False)  # its caller's, set by `Scheduler.add`

    def __post_init__(self) -> None:
        self.rank = self.request.priority, not self.request.moved, self.arrival
        if self.request.moved:
            self.charged = len(self.tokens)

    @property
    def background(self) -> bool:
        return self.request.caller.background

    def names(self, full: int, page_size: int) -> list[PageName]:
        """Names of its first `full` pages, whose tokens must all be known."""
        for first in range(len(self.hashes) * page_size, full * page_size, page_size):
            parent = self.hashes[-1] if self.hashes else self.page_root
            stop = first + page_size
            self.hashes.append(page_name(parent, self.tokens[first:stop], digests(self.request.images, first, stop)))
        return self.hashes[:full]

    def follow(self) -> Drafter | None:
        """Its drafter, which has seen every token that is read."""
        if self.drafter is not None:
            self.drafter.follow(self.tokens, len(self.tokens) - self.tokens[-2:].count(UNREAD))
        return self.drafter

    def drafted(self, count: int) -> list[int]:
        """A guess of its next tokens, `count` at most."""
        return [] if self.drafter is None else self.drafter.draft(count)

    @property
    def one_left(self) -> bool:
        """Whether its next step computes only its last token."""
        return self.computed == len(self.tokens) - 1

    @property
    def decoding(self) -> bool:
        """Whether its next step computes only the token sampled last, which the device has."""
        return self.on_device and self.one_left

    @property
    def unread(self) -> bool:
        return self.tokens[-1] == UNREAD

    @property
    def ready(self) -> bool:
        """Whether it can decode in the next step, which is launched before the previous one is read."""
        waits = self.unread and (self.needs_last_token or not self.on_device)
        return len(self.tokens) < self.limit and not waits and self.masked()

    @property
    def may_enter(self) -> bool:
        """Whether it can have a slot: its tokens are all read, and the next one can be sampled."""
        return not self.unread and self.masked()


class Work(NamedTuple):  # made for every token: a frozen dataclass takes three times as long
    """A sequence's part in a step."""

    seq: Sequence
    start: int  # computes tokens [start, stop)
    stop: int
    samples: bool  # the step reaches the sequence's end, so its sample is the next token
    decoding: bool  # the token is on the device, not in the plan
    draft: Ids[int] = ()  # guesses of the next tokens: each is computed in a row of its own, and sampled after


def with_rows(work: list[Work]) -> Iterator[tuple[int, Work]]:
    """Each sequence's work with its first row in the step; its drafted tokens have the rows after that."""
    row = 0
    for item in work:
        yield row, item
        row += 1 + len(item.draft)
