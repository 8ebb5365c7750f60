"""Token ids of a request's texts, held to what the model and its cache can take."""

from collections.abc import Sequence as Ids

from apps.llm.api import Capabilities, RequestError
from apps.llm.text.requests.validation import check_room
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text_api import SamplingParams


class PromptIds:
    """Makes token ids of texts.

    Args:
        sizes: of the engine that computes them.
    """

    def __init__(self, tokenizer: ModelTokenizer, sizes: Capabilities):
        self._tokenizer, self._sizes = tokenizer, sizes

    def check_room(self, field: str, count: int, after: int = 0) -> None:
        check_room(field, count, self._sizes.max_model_len, self._sizes.cache_tokens, after)

    def limit(self, field: str) -> TokenLimit:
        """What no text of a request may exceed; with room for an answer, a prompt must be shorter still."""
        cache = self._sizes.cache_tokens + 1  # the last token of a scored suffix takes none of it
        if cache < self._sizes.max_model_len:
            return TokenLimit(cache, field, "the KV cache")
        return TokenLimit(self._sizes.max_model_len, field)

    def ids(self, field: str, text: str | Ids[int], special: bool = True) -> list[int]:
        if isinstance(text, str):
            return self._tokenizer.encode(text, self.limit(field), special)
        self.limit(field).check(len(text))
        return self.checked(field, text)

    def checked(self, field: str, token_ids: Ids[int]) -> list[int]:
        """The ids as a list. Raises RequestError if one is not in the vocabulary."""
        ids, size = list(token_ids), self._sizes.vocab_size
        if not all(isinstance(token, int) and 0 <= token < size for token in ids):
            raise RequestError(field, f"{field}: token ids must be integers from 0 to {size - 1}")
        return ids

    def banned(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The tokens of its `bad_words`: of each at the beginning of a text, and after a space where that is another
        token."""
        banned: list[tuple[int, ...]] = []
        for word in params.bad_words:
            first = tuple(self._tokenizer.encode_suffix(word))
            spaced = tuple(self._tokenizer.encode_suffix(" " + word.lstrip()))
            banned += [first, spaced] if len(spaced) == len(first) and spaced[0] != first[0] else [first]
        return tuple(banned)
