"""Pages for people who open a service in a browser: what it serves, at `/`, and its API, at `/docs`.

They are made here and load nothing from elsewhere, so that they look the same without the internet.
"""

from apps.serving.pages.added import Try, add_pages

__all__ = ["Try", "add_pages"]
