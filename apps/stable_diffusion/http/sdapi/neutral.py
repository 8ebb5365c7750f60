"""Fields and settings of AUTOMATIC1111 that would change a picture and are not built: refused, unless they do nothing.

Clients send whole bodies with every field at its default, so each field has values that change nothing; null, "", []
and {} always do. What changes no picture (file names, the web UI's looks) is ignored.
"""

from collections.abc import Mapping
from typing import Any

from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.stable_diffusion.engine.request import Scheduler

ONE_SIZE = "a picture's first pass has its own size"
SAME = "the second pass is made as the first"
ONE_SEED = "a picture's noise comes from its seed alone"
ONE_MODEL = "one model is served here, as it is"
WHOLE = "the sampler runs as published"
NO_NETWORKS = "networks cannot be added to the model"
MERGING = "tokens are not merged"
PROMPTS = "prompts are read with the web UI's defaults"

Neutral = Mapping[str, tuple[tuple[Any, ...], str]]
"""Name -> (values that change nothing; why others are refused)."""

FIELDS: Neutral = {
    "firstphase_width": ((0,), ONE_SIZE),
    "firstphase_height": ((0,), ONE_SIZE),
    "tiling": ((False,), "pictures have edges"),
    "restore_faces": ((False,), "there is no face restoration here"),
    "script_name": (("None",), "scripts do not run here"),
    "refiner_checkpoint": (("None",), ONE_MODEL),
    "styles": ((), "there are no styles here; write them into the prompt"),
    "infotext": ((), "write the fields themselves"),
    "subseed_strength": ((0,), ONE_SEED),
    "seed_resize_from_h": ((0, -1), ONE_SEED),
    "seed_resize_from_w": ((0, -1), ONE_SEED),
    "s_churn": ((0,), WHOLE),
    "s_min_uncond": ((0,), WHOLE),
    "token_merging_ratio": ((0,), MERGING),
    "token_merging_ratio_hr": ((0,), MERGING),
    "initial_noise_multiplier": ((1,), ONE_SEED),
    "latent_mask": ((), "send mask"),
    "controlnet_units": ((), "units go into alwayson_scripts.controlnet.args"),
}
SECOND_PASS: Neutral = {
    "hr_checkpoint_name": (("Use same checkpoint",), ONE_MODEL),
    "hr_sampler_name": (("Use same sampler",), SAME),
    "hr_scheduler": (("Use same scheduler",), SAME),
    "hr_prompt": ((), SAME),
    "hr_negative_prompt": ((), SAME),
}
"""With `enable_hr`."""
SETTINGS: Neutral = {
    "always_discard_next_to_last_sigma": ((False,), WHOLE),
    "comma_padding_backtrack": ((20,), PROMPTS),
    "emphasis": (("Original",), PROMPTS),
    "enable_emphasis": ((True,), PROMPTS),
    "eta_ancestral": ((1,), WHOLE),
    "eta_ddim": ((0,), WHOLE),
    "eta_noise_seed_delta": ((0,), ONE_SEED),
    "face_restoration": ((False,), "there is no face restoration here"),
    "forge_additional_modules": ((), ONE_MODEL),
    "img2img_background_color": (("#ffffff", "white"), "transparent pictures are put on white"),
    "img2img_color_correction": ((False,), "colors stay as they come"),
    "img2img_extra_noise": ((0,), ONE_SEED),
    "img2img_fix_steps": ((False,), "denoising_strength is a share of the steps"),
    "initial_noise_multiplier": ((1,), ONE_SEED),
    "inpainting_mask_weight": ((1,), "a mask is kept or painted"),
    "k_sched_type": (("Automatic",), "write it into scheduler"),
    "overlay_inpaint": ((True,), "what the mask keeps stays as it was"),
    "pad_cond_uncond": ((False,), PROMPTS),
    "pad_cond_uncond_v0": ((False,), PROMPTS),
    "randn_source": (("CPU", "GPU"), "noise is drawn as by torch on a CPU"),
    "return_mask": ((False,), "answers have pictures alone"),
    "return_mask_composite": ((False,), "answers have pictures alone"),
    "rho": ((0,), WHOLE),
    "s_churn": ((0,), WHOLE),
    "s_min_uncond": ((0,), WHOLE),
    "s_min_uncond_all": ((False,), WHOLE),
    "s_noise": ((1,), WHOLE),
    "samples_format": (("png",), "pictures carry their parameters in PNG's metadata"),
    "sd_hypernetwork": (("None",), NO_NETWORKS),
    "sd_lora": (("None",), "write <lora:name:1> into the prompt"),
    "sd_noise_schedule": (("Default",), WHOLE),
    "sd_unet": (("Automatic", "None"), ONE_MODEL),
    "sd_vae": (("Automatic", "None"), ONE_MODEL),
    "sd_vae_decode_method": (("Full",), ONE_MODEL),
    "sd_vae_encode_method": (("Full",), ONE_MODEL),
    "sdxl_crop_left": ((0,), ONE_SIZE),
    "sdxl_crop_top": ((0,), ONE_SIZE),
    "sgm_noise_multiplier": ((False,), WHOLE),
    "sigma_max": ((0,), WHOLE),
    "sigma_min": ((0,), WHOLE),
    "skip_early_cond": ((0,), WHOLE),
    "tiling": ((False,), "pictures have edges"),
    "token_merging_ratio": ((0,), MERGING),
    "token_merging_ratio_hr": ((0,), MERGING),
    "token_merging_ratio_img2img": ((0,), MERGING),
    "use_old_karras_scheduler_sigmas": ((False,), WHOLE),
}
BY_SAMPLER: Mapping[Scheduler, Neutral] = {
    "ddim": {"eta": ((0,), WHOLE)},
    "euler-ancestral": {"eta": ((1,), WHOLE), "s_noise": ((1,), WHOLE)},
}
"""These are read by some samplers only."""
OTHERWISE: Neutral = {"eta": ((0, 1), WHOLE), "s_noise": ((0, 1), WHOLE)}
CLIP_SKIP, MAX_CLIP_SKIP = "CLIP_stop_at_last_layers", 12
EMPTY: tuple[Any, ...] = (None, "", [], {})


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raises OpenAIError, which names the field, if one is neither built nor neutral."""
    _check(fields, FIELDS, "")


def check_scripts(scripts: Mapping[str, Any]) -> None:
    """Raises OpenAIError, which names it, if a script is on."""
    for name, script in scripts.items():
        if not _is_off(script):
            raise _refused(f"alwayson_scripts.{name}", script, "of scripts only controlnet runs here")


def check_second_pass(fields: Mapping[str, Any]) -> None:
    """Raises OpenAIError if the second pass is asked to be another than the first."""
    _check(fields, SECOND_PASS, "")


def check_settings(settings: Mapping[str, Any], prefix: str = "") -> None:
    """Raises OpenAIError if a setting of the web UI is neither built nor neutral, or out of range."""
    _check(settings, SETTINGS, prefix)
    layer = settings.get(CLIP_SKIP)
    if layer not in EMPTY and (type(layer) not in (int, float) or layer not in range(MAX_CLIP_SKIP + 1)):
        message = f"{prefix}{CLIP_SKIP} is {layer!r:.100}; it can be 1 to {MAX_CLIP_SKIP}"
        raise OpenAIError(400, message, prefix + CLIP_SKIP, "invalid_value")


def check_sampler_fields(fields: Mapping[str, Any], scheduler: Scheduler) -> None:
    """Raises OpenAIError if a field is not neutral for this sampler."""
    _check(fields, {**OTHERWISE, **BY_SAMPLER.get(scheduler, {})}, "")


def _check(given: Mapping[str, Any], neutral: Neutral, prefix: str) -> None:
    for name, (values, why) in neutral.items():
        value = given.get(name)
        if value not in EMPTY and not any(_same(value, each) for each in values):
            raise _refused(prefix + name, value, why, values)


def _refused(name: str, value: Any, why: str, values: tuple[Any, ...] = ()) -> OpenAIError:
    fix = " or ".join(["leave it out", *(f"write {each!r}" for each in values[:1])])
    shown = "" if isinstance(value, bool | list | dict) else f"{value!r} "
    return OpenAIError(400, f"{name}: {shown}is not offered: {why}; {fix}", name, "invalid_value")


def _same(value: Any, other: Any) -> bool:
    return value.lower() == other.lower() if isinstance(value, str) and isinstance(other, str) else value == other


def _is_off(script: Any) -> bool:
    """Whether an always-on script does nothing: without arguments, switched off, or with units that all are."""
    arguments = script.get("args") if isinstance(script, dict) else script
    if arguments in EMPTY or (isinstance(arguments, list) and arguments[0] is False):
        return True
    units = arguments if isinstance(arguments, list) else [arguments]
    return all(unit in EMPTY or (isinstance(unit, dict) and unit.get("enabled") is False) for unit in units)
