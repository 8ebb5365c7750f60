"""diffusers' safety checker: a CLIP that looks at finished pictures, on the CPU, beside the engine."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from apps.arrays.model_folder import CheckpointError, from_hub

HIDDEN = "the safety checker hid this picture: it is black"
CHECKER, EXTRACTOR = "safety_checker", "feature_extractor"
"""Its folders in a pipeline. Alone, one folder has the files of both."""


class SafetyChecker:
    """Loaded from a local folder or a hub id: a pipeline that has one, or the checker alone.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """

    def __init__(self, location: str) -> None:
        import transformers
        from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

        folder = _folder(location)
        own, images = (folder / name if (folder / CHECKER).is_dir() else folder for name in (CHECKER, EXTRACTOR))
        # transformers 5 calls the one without torchvision, which is not installed, by a name of its own.
        processor: Any = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
        try:
            self._network: Any = StableDiffusionSafetyChecker.from_pretrained(own, use_safetensors=True).eval()
            self._processor = processor.from_pretrained(images)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"safety_checker {location}: it cannot be read: {error}") from error
        self._one = threading.Lock()  # PyTorch takes all cores for a picture

    def hidden(self, pixels: np.ndarray) -> bool:
        """Whether a picture [height, width, 3] uint8 must not be shown."""
        seen = self._processor([pixels], return_tensors="pt").pixel_values
        with self._one:
            _, found = self._network(clip_input=seen, images=[pixels])
        return bool(found[0])


def _folder(location: str) -> Path:
    path = Path(location).expanduser()
    if path.is_dir():
        return path
    if "://" in location or location.startswith(("/", ".", "~")) or location.count("/") != 1:
        raise CheckpointError(f"safety_checker {location}: no such folder; a local folder or a hub id is expected")
    files = ["config.json", "preprocessor_config.json", "model.safetensors"]
    return Path(from_hub(location, [*files, *(f"{CHECKER}/{name}" for name in files), f"{EXTRACTOR}/{files[1]}"]))
