"""Prompts as a language model reads them that encodes pictures' texts: as a chat's only message."""

import numpy as np

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.conditioning.prompts import PromptText, PromptTokens, TextCache
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint

POSITIONS = 512
"""Of a prompt with its template, as diffusers' `ZImagePipeline` and `Flux2KleinPipeline` have it by default."""
MARK = "\N{OBJECT REPLACEMENT CHARACTER}"


class TemplatedPrompts:
    """The `Tokenizing` of a checkpoint whose tokenizer has a chat template.

    Args:
        thinking: whether the template is asked for an answer with thoughts.
    """

    def __init__(self, checkpoint: Checkpoint, thinking: bool) -> None:
        self.lengths, self._thinking = [POSITIONS], thinking
        (name,) = checkpoint.tokenizers
        self._tokenizer = checkpoint.tokenizer(name)
        before, mark, after = self._in_template(MARK, checkpoint.location).partition(MARK)
        if not mark:
            raise CheckpointError(f"{checkpoint.location}/{name}: the chat template leaves the message out")
        self._behind = len(self._ids(after))
        self.most = POSITIONS - self._behind - len(self._ids(before))
        self._known = TextCache(self._tokenize)

    def __call__(self, text: PromptText) -> PromptTokens:
        return self._known(text)

    def _tokenize(self, text: PromptText) -> PromptTokens:
        """[1, POSITIONS] ids, and [1] how many there are."""
        whole = self._ids(self._in_template(text.text, "the checkpoint"))
        ids = whole[:POSITIONS]
        dropped = ""
        if len(whole) > POSITIONS:
            dropped = self._tokenizer.decode(whole[POSITIONS : len(whole) - self._behind]).strip()
        padded = np.full((1, POSITIONS), self._tokenizer.pad_token_id or 0, np.int32)
        padded[0, : len(ids)] = ids
        return PromptTokens((padded, np.array([len(ids)], np.int32)), dropped)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def _in_template(self, text: str, where: str) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}],
                    tokenize=False,
                    add_generation_prompt=True,
                    enable_thinking=self._thinking,
                )
            )
        except Exception as error:  # whatever a template raises
            raise CheckpointError(f"{where}: the tokenizer's chat template fails: {error}") from error
