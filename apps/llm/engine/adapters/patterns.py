"""Which modules an adapter's `rank_pattern` and `alpha_pattern` mean.

PEFT takes each key for a regular expression that the end of a module's name matches, `(.*\\.)?(KEY)$`, and the first
that does is used (its `get_pattern_key`). An expression can take for ever, so one that is more than a name is
matched by an engine that stops in time.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

import regex

from apps.arrays.model_folder import CheckpointError

MOST, LONGEST = 20_000, 1_000
"""Keys of a pattern, and characters of a key."""
PLAIN = re.compile(r"[\w.\-^]*")
"""Keys that cannot make Python's own engine try one thing twice."""
BUDGET_S = 10.0
"""Seconds for all expressions and modules of an adapter; those of real ones take milliseconds."""


class Patterns:
    """The values of a pattern's keys, for modules in turn.

    Args:
        where: the file, for errors.
        field: `rank_pattern` or `alpha_pattern`.

    Raises:
        CheckpointError: it is no object, or a key no regular expression; the message names it.
    """

    def __init__(self, where: str, field: str, patterns: Any):
        self._name = f"{where}: {field}"
        if patterns is not None and not isinstance(patterns, Mapping):
            raise CheckpointError(f"{self._name} must be an object of module names, not {type(patterns).__name__}")
        if patterns and (len(patterns) > MOST or max(map(len, patterns)) > LONGEST):
            raise CheckpointError(f"{self._name} may have {MOST} names, each of {LONGEST} characters")
        self._values = [(key, self._compiled(key), value) for key, value in (patterns or {}).items()]
        self._left_s = BUDGET_S
        self._known: dict[str, Any] = {}

    def _compiled(self, key: str) -> Any:
        whole = rf"(.*\.)?({key})$"
        try:
            if PLAIN.fullmatch(key):
                return re.compile(whole)
            re.compile(whole)  # PEFT's engine decides what is an expression
            return regex.compile(whole)
        except (re.error, regex.error, RecursionError, OverflowError) as error:
            raise CheckpointError(f"{self._name}: {key!r:.200} is no regular expression: {error}") from error

    def of(self, module: str, default: Any) -> Any:
        """The value of the first key that the module's name ends with.

        Raises:
            CheckpointError: a key takes too long to match.
        """
        if module not in self._known:
            self._known[module] = self._first(module, default)
        return self._known[module]

    def _first(self, module: str, default: Any) -> Any:
        for key, pattern, value in self._values:
            began = time.monotonic()
            try:
                if isinstance(pattern, re.Pattern):
                    found = pattern.match(module)
                else:
                    found = pattern.match(module, timeout=max(self._left_s, 1e-3), concurrent=True)
            except TimeoutError:
                problem = f"{self._name}: {key!r:.200} takes too long to match: write the modules' names instead"
                raise CheckpointError(problem) from None
            self._left_s -= time.monotonic() - began
            if found:
                return value
        return default
