"""A line of status: what happens, or what went wrong."""

import html


def note(text: str, problem: bool = True) -> str:
    """The line as HTML; empty for none."""
    return f'<p class="{"problem" if problem else "news"}">{html.escape(text)}</p>' if text else ""
