"""Prompts as CLIP reads them: in chunks of 75 tokens, each between a start and an end token, encoded by itself.

Source: `tokenize_line` in AUTOMATIC1111's modules/sd_hijack_clip.py, with its settings' defaults.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

BACKTRACK = 20
"""Tokens behind a comma that move to the next chunk rather than have the end of a chunk among them."""


@dataclass(slots=True)
class PromptChunk:
    """Tokens without start and end, and the weight of each."""

    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, token: int, weight: float) -> None:
        self.ids.append(token)
        self.weights.append(weight)

    def cut(self, at: int) -> "PromptChunk":
        """Takes the tokens from there on away; returns them."""
        tail = PromptChunk(self.ids[at:], self.weights[at:])
        del self.ids[at:], self.weights[at:]
        return tail


@dataclass(frozen=True, slots=True)
class WeightedTokens:
    """Tokens of one weight, which may begin a chunk."""

    ids: list[int]
    weight: float = 1.0
    begins_chunk: bool = False


def chunked(
    parts: Iterable[WeightedTokens], capacity: int, most: int, comma: int | None
) -> tuple[list[PromptChunk], list[int]]:
    """The chunks of a prompt, and the tokens for which there is no room.

    Args:
        capacity: tokens of a chunk.
        most: chunks that there may be.
        comma: the token of one; None: the vocabulary has none.
    """
    chunks, last_comma = [PromptChunk()], -1
    for part in parts:
        if part.begins_chunk:
            chunks.append(PromptChunk())
            last_comma = -1
        for token in part.ids:
            chunk = chunks[-1]
            if token == comma:
                last_comma = len(chunk)
            if len(chunk) == capacity:
                near = token != comma and last_comma >= 0 and capacity - last_comma <= BACKTRACK
                # What moves from the last chunk would be lost.
                chunks.append(chunk.cut(last_comma + 1) if near and len(chunks) < most else PromptChunk())
                last_comma = -1
            chunks[-1].add(token, part.weight)
    if len(chunks) > 1 and not chunks[-1].ids:
        chunks.pop()
    dropped = [token for chunk in chunks[most:] for token in chunk.ids]
    return chunks[:most], dropped
