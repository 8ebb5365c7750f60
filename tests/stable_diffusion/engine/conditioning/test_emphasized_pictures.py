"""Pictures of prompts with weights and of several chunks, against diffusers' networks and schedulers.

The oracle of the encoded text is AUTOMATIC1111's: each chunk through transformers' encoder, its hidden states times
the tokens' weights, their mean restored (`EmphasisOriginal` of modules/sd_emphasis.py), chunks side by side, the
pooled text of the first (`forward` of modules/sd_hijack_clip.py). Prompt and negative prompt go through diffusers'
UNet one after the other, each at its own length, as there where `pad_cond_uncond` is off.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.request import PictureRequest
from tests.stable_diffusion.engine.picture_backends import BACKENDS
from tests.stable_diffusion.engine.test_pictures import CLASSES, SIZE, ask, difference, make, pipeline

Words = Sequence[tuple[str, float]]
"""A chunk: its words, and what they weigh."""

SECOND = "a small photo of (two white cat:1.2) and the blue square of one small"
PROMPTS: dict[str, list[Words]] = {
    "a (red circle:1.6) on [white]": [[("a ", 1), ("red circle", 1.6), (" on ", 1), ("white", 1 / 1.1)]],
    "((two)) cats \\(small\\) (and:0) blue": [
        [("two", 1.1 * 1.1), (" cats (small) ", 1), ("and", 0), (" blue", 1)],
    ],
    "a red circle BREAK (blue:1.3) square": [[("a red circle", 1)], [("blue", 1.3), (" square", 1)]],
    f"a cat, one green circle on a red square, {SECOND} green circle": [
        [("a cat, one green circle on a red square,", 1)],
        [("a small photo of ", 1), ("two white cat", 1.2), (" and the blue square of one small", 1)],
        [("green circle", 1)],
    ],
    "blue": [[("blue", 1)]],
    "": [[]],
}
SINGLE = [prompt for prompt, chunks in PROMPTS.items() if len(chunks) == 1]


def encoded(pipe: Any, chunks: list[Words]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[1, positions, d], and [1, e] of XL."""
    is_xl, contexts, pooled = hasattr(pipe, "text_encoder_2"), [], None
    for name in ("", "_2") if is_xl else ("",):
        encoder, tokenizer = getattr(pipe, f"text_encoder{name}"), getattr(pipe, f"tokenizer{name}")
        own = []
        for number, chunk in enumerate(chunks):
            each = [(tokenizer(text)["input_ids"][1:-1], weight) for text, weight in chunk]
            ids = [tokenizer.bos_token_id, *(i for part, _ in each for i in part), tokenizer.eos_token_id]
            weights = [1.0, *(weight for part, weight in each for _ in part)]
            assert len(ids) <= 16, "as many as the tiny encoder has"
            ids += [tokenizer.pad_token_id] * (16 - len(ids))
            weights = torch.tensor(weights + [1.0] * (16 - len(weights)))
            output = encoder(torch.tensor([ids]), output_hidden_states=True)
            hidden = output.hidden_states[-2] if is_xl else output.last_hidden_state
            weighted = hidden * weights[None, :, None]
            own.append(weighted * (hidden.mean() / weighted.mean()))
            if name and number == 0:
                pooled = output.text_embeds
        contexts.append(torch.cat(own, 1))
    return torch.cat(contexts, -1), pooled


@torch.no_grad()
def reference(folder: Path, request: PictureRequest) -> np.ndarray:
    pipe, config = pipeline(folder)
    scheduler = CLASSES[request.scheduler].from_config(config, clip_sample=False)
    scheduler.set_timesteps(request.num_inference_steps)
    generator = torch.Generator().manual_seed(request.seed)
    latents = torch.randn((1, 4, SIZE // 2, SIZE // 2), generator=generator) * scheduler.init_noise_sigma
    texts = [encoded(pipe, PROMPTS[text]) for text in (request.negative_prompt, request.prompt)]
    if texts[0][1] is not None and not request.negative_prompt:
        texts[0] = tuple(map(torch.zeros_like, texts[0]))
    for t in scheduler.timesteps:
        x = scheduler.scale_model_input(latents, t)
        outs = []
        for context, pooled in texts:
            more = {}
            if pooled is not None:
                more = {"text_embeds": pooled, "time_ids": torch.tensor([[SIZE, SIZE, 0, 0, SIZE, SIZE]])}
            outs.append(pipe.unet(x, t, context, added_cond_kwargs=more).sample)
        out = outs[0] + request.guidance_scale * (outs[1] - outs[0])
        takes = {} if request.scheduler == "dpm-solver++" else {"generator": generator}
        latents = scheduler.step(out, t, latents, **takes).prev_sample
    pixels = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample[0]
    return ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def requests(prompts: Sequence[str]) -> list[PictureRequest]:
    negatives = ("", "blue", *prompts)
    schedulers = ("ddim", "euler", "dpm-solver++", "euler-ancestral")
    return [
        ask(
            schedulers[i % 4],
            3 + i % 2,
            seed=i,
            prompt=prompt,
            negative_prompt=negatives[i % len(negatives)],
            emphasis=True,
        )
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("family", ["sd1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sd2", "sdxl"))])
def test_weights(backend: Callable[..., Backend], checkpoint: Callable, family: str, name: str) -> None:
    for request in requests(SINGLE):
        [picture] = make(backend(name, family), request)
        assert difference(picture, reference(checkpoint(family), request)) <= 2, request.prompt


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("family", ["sd1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sd2", "sdxl"))])
def test_chunks(backend: Callable[..., Backend], checkpoint: Callable, family: str, name: str) -> None:
    """Prompts of one to three chunks; of sd1 three side by side, each as if alone."""
    made = backend(name, family, prompt_chunks=3)
    wanted = requests(list(PROMPTS))
    for i in range(0, len(wanted), 3):
        batch = wanted[i : i + 3]
        pictures = make(made, *batch) if family == "sd1" else [make(made, each)[0] for each in batch]
        for request, picture in zip(batch, pictures):
            assert difference(picture, reference(checkpoint(family), request)) <= 2, request.prompt
    assert made.compiles_after_ready == 0


@pytest.mark.parametrize("name", BACKENDS)
def test_without_weights_they_are_letters(backend: Callable[..., Backend], name: str) -> None:
    made = backend(name, "sd1")
    prompt = "a (red:1.6) cat"
    weighted, letters, escaped = make(
        made,
        ask(prompt=prompt, emphasis=True),
        ask(prompt=prompt),
        ask(prompt="a \\(red:1.6\\) cat", emphasis=True),
    )
    assert difference(letters, escaped) <= 1 and difference(weighted, letters) > 10


@pytest.mark.parametrize("name", BACKENDS)
def test_words_beyond_the_last_chunk(backend: Callable[..., Backend], name: str) -> None:
    made = backend(name, "sd1", prompt_chunks=3)
    long = " ".join(["a red circle on a blue square and one green cat"] * 4)
    picture = made.start(ask(prompt=long, negative_prompt="blue"))
    [warning] = picture.warnings
    assert warning.startswith("prompt is longer than the 42 tokens that the model reads") and "cat" in warning
