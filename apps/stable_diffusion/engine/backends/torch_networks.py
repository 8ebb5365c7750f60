"""diffusers' own torch modules of a Stable Diffusion model, without their loops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint


class TorchText(NamedTuple):
    """An encoded prompt."""

    context: torch.Tensor  # [1, positions, d]
    pooled: torch.Tensor | None  # [1, e], of XL
    seen: torch.Tensor | None  # [1, positions] bool, those of the context that count; None: all

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "TorchText":
        return TorchText(*(None if each is None else function(each) for each in self))


class KeptRegion(NamedTuple):
    """The part of an image that inpainting keeps."""

    mask: torch.Tensor  # [1, 1, h, w], 0 where it is kept
    original: torch.Tensor  # [1, 4, h, w]
    start_noise: torch.Tensor  # [1, 4, h, w]


class TorchNetworks:
    """A model's text encoders, UNet and VAE on a device. No method keeps what it computes on its way.

    Args:
        guided: whether batches have a negative half; see `predict`.

    Raises:
        CheckpointError: diffusers cannot load the checkpoint, or a number in it is not finite.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, guided: bool) -> None:
        self._device, self._dtype, self._guided, self._is_xl = device, dtype, guided, checkpoint.is_xl
        pipeline = _pipeline(checkpoint, dtype)
        self._text_encoders = [getattr(pipeline, name).eval().to(device) for name in checkpoint.text_encoders]
        self._unet = pipeline.unet.eval().to(device)
        self._vae = pipeline.vae.eval().to(device)
        self.reduction = 2 ** (len(self._vae.config.block_out_channels) - 1)
        """Pixels of a picture's side for one latent."""

    def encode_text(self, inputs: tuple[np.ndarray, ...]) -> TorchText:
        """Encode a text. Inputs: `ClipTokens` makes them."""
        arrays = [torch.from_numpy(each).to(self._device) for each in inputs]
        n, contexts, pooled = len(self._text_encoders), [], None
        left_out = 0 if self._is_xl else int(inputs[2 * n])
        for encoder, ids, weights in zip(self._text_encoders, arrays[:n], arrays[n:]):
            output = encoder(ids.long(), output_hidden_states=self._is_xl or left_out > 0)
            contexts.append(_weighted(_read(encoder, output, self._is_xl, left_out), weights))
            pooled = output.text_embeds[:1] if self._is_xl and "text_embeds" in output else pooled
        context = torch.cat(contexts, dim=-1).to(self._dtype)
        chunks, positions, _ = context.shape
        seen = None
        if chunks > 1:
            seen = torch.arange(chunks * positions, device=self._device)[None] < arrays[-1] * positions
        return TorchText(context.flatten(0, 1)[None], pooled, seen)

    def predict(
        self, x: torch.Tensor, time: torch.Tensor, guidance: torch.Tensor, texts: dict[str, Any]
    ) -> torch.Tensor:
        """The UNet's output with guidance applied: [b, 4, h, w] float32. Texts: arguments of its `forward`."""
        if self._guided:
            x, time = torch.cat([x, x]), torch.cat([time, time])
        out = self._unet(x.to(self._dtype), time, **texts, return_dict=False)[0].float()
        if not self._guided:
            return out
        plain, prompted = out.chunk(2)
        return plain + guidance * (prompted - plain)

    def encode_image(self, image: np.ndarray, noise: torch.Tensor) -> torch.Tensor:
        """[H, W, 3] uint8 -> [1, 4, h, w] float32, scaled for the UNet."""
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255 * 2 - 1
        found = self._vae.encode(pixels.to(self._dtype).to(self._device)).latent_dist
        latents = found.mean.float() + found.std.float() * noise.to(self._device)
        return latents * self._vae.config.scaling_factor

    def decode(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, 4, h, w] -> [3, H, W] uint8, and whether its numbers are finite."""
        latents = (latents / self._vae.config.scaling_factor).to(self._dtype)
        pixels = self._vae.decode(latents, return_dict=False)[0].float()
        finite = torch.isfinite(pixels).all()
        return ((pixels[0] / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8), finite


def _read(encoder: Any, output: Any, is_xl: bool, left_out: int) -> torch.Tensor:
    """What the UNet reads of a text encoder's layers: [chunks, positions, hidden]."""
    if is_xl:
        return output.hidden_states[-2]
    if not left_out:
        return output.last_hidden_state
    within = getattr(encoder, "text_model", encoder)  # transformers had it until 5.0
    return within.final_layer_norm(output.hidden_states[-1 - left_out])


def _weighted(context: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """As in `conditioning.clip`: [chunks, positions, hidden] times [chunks, positions]."""
    own = context.float()
    weighted = own * weights[..., None]
    weighted = weighted * (own.mean((1, 2), keepdim=True) / weighted.mean((1, 2), keepdim=True))
    return torch.where((weights != 1).any(1)[:, None, None], weighted, own).to(context.dtype)


def _pipeline(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """diffusers' pipeline: its modules are used, its loop is not."""
    import diffusers
    from diffusers.utils import logging as diffusers_logging
    from packaging.version import Version

    variant = checkpoint.variant  # CheckpointError by name before diffusers looks
    for component in checkpoint.components:
        checkpoint.config(component)  # likewise
    quiet = diffusers_logging.is_progress_bar_enabled()
    diffusers_logging.disable_progress_bar()
    try:
        more: dict[str, Any] = {} if checkpoint.is_xl else {"safety_checker": None, "requires_safety_checker": False}
        more |= {"dtype" if Version(diffusers.__version__) >= Version("0.42") else "torch_dtype": dtype}
        with checkpoint.local_folder() as folder:
            made = diffusers.DiffusionPipeline.from_pretrained(folder, use_safetensors=True, variant=variant, **more)
        for component in checkpoint.components:
            for name, tensor in getattr(made, component).state_dict().items():
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    raise CheckpointError(
                        f"{checkpoint.location}/{component}: tensor {name} has numbers that are not finite (NaN or "
                        f"infinity, or too large for {dtype})"
                    )
        return made
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{checkpoint.location}: diffusers cannot load it: {error}") from error
    finally:
        if quiet:
            diffusers_logging.enable_progress_bar()
