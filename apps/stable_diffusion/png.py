"""Pictures as PNG files, with their parameters in the metadata."""

import io
import zlib
from collections.abc import Mapping

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from apps.stable_diffusion.engine.controlnets.use import MODES
from apps.stable_diffusion.engine.request import PictureRequest
from apps.stable_diffusion.prompt_syntax import with_loras
from apps.stable_diffusion.samplers import SAMPLER_NAMES
from apps.stable_diffusion.upscalers import upscaler_of

COMPRESSION = {"compress_level": 1, "compress_type": zlib.Z_RLE}
"""Run lengths and Huffman codes, without a search for repetitions, which photos do not have: a third less time than
zlib's fastest level alone, and smaller files."""


def encode_png(pixels: np.ndarray, texts: Mapping[str, str]) -> bytes:
    """A PNG of pixels [height, width, 3] uint8, with texts in its metadata."""
    info = PngInfo()
    for key, text in texts.items():
        # tEXt, or iTXt where a text is not Latin-1; no NUL, which ends a text.
        info.add_text(key, text.replace("\0", ""))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", pnginfo=info, **COMPRESSION)
    return file.getvalue()


def parameters_of(request: PictureRequest, model: str) -> str:
    """A picture's generation parameters, in the format of AUTOMATIC1111's `parameters`, which many programs read."""
    lines = [with_loras(request.prompt, request.loras)]
    if request.negative_prompt:
        lines.append(f"Negative prompt: {request.negative_prompt}")
    facts = {
        "Steps": request.num_inference_steps,
        "Sampler": SAMPLER_NAMES[request.scheduler],
        **({"Schedule type": "Karras"} if request.karras else {}),
        "CFG scale": f"{request.guidance_scale:g}",
        "Seed": request.seed,
        "Size": f"{request.width}x{request.height}",
        "Model": f'"{model}"' if set(model) & set(',:"') else model,
    }
    if request.image is not None:
        facts["Denoising strength"] = f"{request.strength:g}"
    if request.clip_skip > 1:
        facts["Clip skip"] = request.clip_skip
    if (second := request.second_pass) is not None:
        facts |= {
            "Denoising strength": f"{second.strength:g}",
            "Hires resize": f"{second.width}x{second.height}",
            "Hires steps": second.num_inference_steps or request.num_inference_steps,
            "Hires upscaler": upscaler_of(second),
        }
    for i, use in enumerate(request.controls):
        facts[f"ControlNet {i}"] = (
            f'"Module: none, Model: {use.name}, Weight: {use.weight:g}, Guidance Start: {use.start:g}, '
            f'Guidance End: {use.end:g}, Control Mode: {MODES[use.mode]}"'
        )
    lines.append(", ".join(f"{key}: {value}" for key, value in facts.items()))
    return "\n".join(lines)
