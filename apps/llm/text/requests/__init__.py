"""Requests in words become requests in tokens: checked, with their prompts and their sampling."""
