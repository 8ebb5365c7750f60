"""Many steps of a scheduler at once, for who runs it on a virtual clock: see `apps.plan.simulation`.

Most steps of a busy engine are alike: each computes one token of every running sequence, nothing enters, nothing ends.
"""

from collections.abc import Iterator

from apps.llm.engine.schedule.scheduler import Scheduler
from apps.llm.engine.schedule.sequence import UNREAD, Sequence


def steady_steps(scheduler: Scheduler) -> int:
    """How many of the next steps only compute the next token of every running sequence; 0 if that is not known.

    A step is in flight, as in `Stepper`. What comes from outside (a new request, an abort) is not foreseen.
    """
    accounts = [account for account in scheduler.accounts.of_class(background=False) if account.running]
    if len(accounts) != 1 or len(accounts[0].running) != len(scheduler.running) or scheduler.pool.host.total:
        return 0
    if scheduler.slots and next(scheduler.accounts.waiting, None) is not None:
        return 0  # it may enter
    if any(account is not accounts[0] and account.waiting for account in scheduler.accounts.of_class(False)):
        return 0  # it may be due a slot
    if not all(seq.unread and seq.decoding and seq.ready for seq in scheduler.running):
        return 0
    steps = min(seq.limit - len(seq.tokens) for seq in scheduler.running)
    if scheduler.states is not None:
        steps = min(steps, *map(scheduler.reuse.until_kept, scheduler.running))
    while (
        steps and sum(_pages_needed(seq, steps, scheduler.page_size) for seq in scheduler.running) > scheduler.pool.free
    ):
        steps //= 2
    return steps


def advance(scheduler: Scheduler, steps: int, token: int = 0) -> None:
    """The same as so many times `schedule`, and `fill_in` of this token for every sequence, in fewer operations.

    Args:
        steps: at most what `steady_steps` says.
    """
    running = next(account for account in scheduler.accounts.of_class(background=False) if account.running).running
    changes = list[tuple[int, bool, int, int]]()  # step, whether a page is published or allocated, sequence, page
    for number, seq in enumerate(running):
        length = len(seq.tokens)
        changes += ((step, False, number, 0) for step in _steps_that_allocate(seq, length, steps, scheduler.page_size))
        if scheduler.pool.reuse:
            first, last = seq.published, (length + steps - 1) // scheduler.page_size
            changes += (
                (max(0, (page + 1) * scheduler.page_size - length), True, number, page) for page in range(first, last)
            )
        seq.account.charge(max(0, min(steps, length + steps - 1 - seq.charged)))
        seq.computed += steps
        seq.tokens[-1:] = [token] * steps + [UNREAD]
    # In the order of the steps: which page is evicted, and whose page gets a name first, depend on it.
    for _, publishes, number, page in sorted(changes):
        seq = running[number]
        if publishes:
            if scheduler.pool.publish(seq.pages[page], seq.names(page + 1, scheduler.page_size)[page]):
                scheduler.pool.news.tell(seq, page)
            seq.published = page + 1
        else:
            allocated = scheduler.pool.allocate(1)
            assert allocated is not None  # `steady_steps` has counted them
            seq.pages += allocated
    scheduler.backlog.next_step(scheduler.accounts.of_class(background=False), steps)


def _pages_needed(seq: Sequence, steps: int, page_size: int) -> int:
    return max(0, -(-(len(seq.tokens) + steps - 1) // page_size) - len(seq.pages))


def _steps_that_allocate(seq: Sequence, length: int, steps: int, page_size: int) -> Iterator[int]:
    """Step number n, from 0, needs room for `length + n` tokens."""
    return iter(range(max(0, len(seq.pages) * page_size - length + 1), steps, page_size))
