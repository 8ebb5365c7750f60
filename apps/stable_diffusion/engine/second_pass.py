"""A second pass over a picture: its latents are enlarged and drawn over, as AUTOMATIC1111's "hires fix" does."""

from dataclasses import replace

import numpy as np

from apps.stable_diffusion.engine.controlnets.use import in_second_pass
from apps.stable_diffusion.engine.request import PictureRequest, SecondPass


def second_request(request: PictureRequest, latents: np.ndarray) -> PictureRequest:
    """The second pass as a picture of its own, which begins at the first one's latents [h, w, channels].

    Its noise comes from the seed anew, as there.
    """
    wanted = request.second_pass
    assert wanted is not None  # who calls this has looked
    scale = latents.shape[0] / request.height
    size = round(wanted.height * scale), round(wanted.width * scale)
    return replace(
        request,
        width=wanted.width,
        height=wanted.height,
        num_inference_steps=wanted.num_inference_steps or request.num_inference_steps,
        strength=wanted.strength,
        min_steps=1,
        latents=enlarged(latents, size, wanted),
        controls=in_second_pass(request.controls),
        second_pass=None,
    )


def enlarged(latents: np.ndarray, size: tuple[int, int], wanted: SecondPass) -> np.ndarray:
    """[h, w, channels] -> [H, W, channels] for a size (H, W), on the CPU: latents are small."""
    import torch

    nchw = torch.from_numpy(np.ascontiguousarray(latents.transpose(2, 0, 1)))[None]
    made = torch.nn.functional.interpolate(
        nchw, size=size, mode=wanted.interpolation, antialias=wanted.antialias and wanted.interpolation[0] == "b"
    )
    return np.ascontiguousarray(made[0].permute(1, 2, 0).numpy())
