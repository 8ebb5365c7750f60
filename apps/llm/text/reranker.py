"""Judges documents as Qwen3-Reranker does: by the probability of `yes`, against `no`, after a prompt with the texts."""

from dataclasses import dataclass

from apps.llm.engine.model.architecture import Architecture
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from ray_configs.llm import EngineConfig

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt that the model was trained with. Source: Qwen3-Reranker's model card."""
WORDS = "no", "yes"


@dataclass(frozen=True)
class Reranker:
    """A model that answers yes or no.

    Args:
        yes, no: token ids, whose logits are compared; in a classifier, the rows of its matrix.
    """

    yes: int
    no: int

    @classmethod
    def of(cls, config: EngineConfig, arch: Architecture, tokenizer: ModelTokenizer) -> "Reranker | None":
        """The reranker that the config or the checkpoint names; None if it names none.

        Raises:
            ValueError: the tokenizer has no single token for one of the words.
        """
        named = arch.labels or arch.answers or "qwen3-reranker" in config.model.lower()
        if config.reranker == "none" or (config.reranker == "auto" and not (named and arch.family == "qwen3")):
            return None
        if arch.labels:  # one label: its logit is that of yes less that of no, and the next row is zero
            return cls(yes=arch.labels - 1, no=2 - arch.labels)
        ids = {word: tokenizer.encode_suffix(word) for word in arch.answers or WORDS}
        for word, tokens in ids.items():
            if len(tokens) != 1:
                raise ValueError(f"reranker: {word!r} is {len(tokens)} tokens of this model's tokenizer, not one")
        (no,), (yes,) = ids.values()
        return cls(yes, no)

    def prompt(self, query: str, document: str, instruction: str | None) -> str:
        """The prompt after which the model answers; with special tokens as text."""
        return PROMPT.format(instruction=instruction or INSTRUCTION, query=query, document=document)
