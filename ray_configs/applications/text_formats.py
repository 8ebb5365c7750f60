"""Formats in which models write calls of tools, and reasoning; `auto` looks at the chat template."""

from typing import Literal

ToolCallFormat = Literal[
    "auto", "none", "hermes", "qwen3_coder", "llama", "pythonic", "mistral", "gemma", "deepseek", "harmony", "atem",
    "json",
]  # fmt: skip
ReasoningFormat = Literal["auto", "none", "think", "mistral", "gemma"]
