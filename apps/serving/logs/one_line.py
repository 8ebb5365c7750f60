"""One line of a log for each record: what callers wrote cannot begin another, or move a terminal's cursor.

Names, paths and texts of requests, adapters and schemas reach messages and the texts of errors. Their control
characters are written as escapes; the lines of a traceback are indented.
"""

import logging
import re

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that end a line, start a terminal's command, or change the direction of what is shown. Tabs may stay."""
BELOW = "\n    "
_FORMAT = logging.Formatter()


def escaped(text: str) -> str:
    r"""The text in one line: a line feed becomes `\n`, an escape `\x1b`."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


class OneLine(logging.Filter):
    """Rewrites a logger's or handler's records, and lets all of them pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # a handler reports arguments that do not fit
            return True
        if (plain := escaped(message)) != message:
            record.msg, record.args = plain, None
        if record.exc_info and not record.exc_text:
            lines = re.split(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", _FORMAT.formatException(record.exc_info))
            record.exc_text = BELOW.join(map(escaped, lines))
        return True


def keep_to_one_line() -> None:
    """Do so for all records of this project's logger, whoever handles them."""
    log = logging.getLogger("podslice")
    if not any(isinstance(filter, OneLine) for filter in log.filters):
        log.addFilter(OneLine())
