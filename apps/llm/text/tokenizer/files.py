"""What a model folder has beside, or instead of, a tokenizer.json."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from apps.arrays.model_folder import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def without_tokenizer_json(folder: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of files of before tokenizer.json. Raises CheckpointError if they cannot be read."""
    from transformers import AutoTokenizer

    try:
        hf = AutoTokenizer.from_pretrained(folder)
        if hasattr(hf, "backend_tokenizer"):
            return hf
        problem: object = f"transformers has only a slow {type(hf).__name__} for it"
    except Exception as error:  # of any of its readers
        problem = error
    found = Path(folder, "tokenizer.model").is_file()
    fix = "or save the tokenizer once with transformers, which writes a tokenizer.json"
    if found and (find_spec("sentencepiece") is None or find_spec("google.protobuf") is None):
        problem = "tokenizer.model is in SentencePiece's format, which needs the packages sentencepiece and protobuf"
        fix = f"install them (pip install sentencepiece protobuf), {fix}"
    raise CheckpointError(f"the model folder has no tokenizer.json, and its tokenizer cannot be read: {problem}; {fix}")


def chat_template_beside(folder: str) -> str | None:
    """The template of a file of its own, which processors have; None if there is none.

    Raises:
        CheckpointError: the file cannot be read.
    """
    file = Path(folder, "chat_template.json")
    if not file.is_file():
        return None
    try:
        template = json.loads(file.read_bytes())["chat_template"]
        if isinstance(template, str):
            return template
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file.name}: no chat template in it: {error!r}") from error
