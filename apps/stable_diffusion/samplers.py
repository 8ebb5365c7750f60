"""One vocabulary of samplers for every dialect: this project's names, AUTOMATIC1111's with its aliases, diffusers'."""

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.request import KARRAS, SCHEDULERS, Scheduler

SAMPLER_NAMES: dict[Scheduler, str] = {
    "ddim": "DDIM",
    "euler": "Euler",
    "euler-ancestral": "Euler a",
    "dpm-solver++": "DPM++ 2M",
    "lcm": "LCM",
}
"""Names in AUTOMATIC1111's web UI, and so in most programs that show pictures' metadata."""
ALIASES: dict[Scheduler, tuple[str, ...]] = {
    "ddim": ("DDIMScheduler",),
    "euler": ("k_euler", "EulerDiscreteScheduler"),
    "euler-ancestral": ("k_euler_a", "k_euler_ancestral", "EulerAncestralDiscreteScheduler"),
    "dpm-solver++": ("k_dpmpp_2m", "DPMSolverMultistepScheduler"),
    "lcm": ("k_lcm", "LCMScheduler"),
}
"""What else AUTOMATIC1111's API and diffusers call them."""
_KARRAS_ENDINGS = (" karras", "_karras", "-karras", "_ka")


def sampler_named(name: str, schedule: str | None = None) -> tuple[Scheduler, bool]:
    """The sampler, and whether its noise levels are Karras'. Upper and lower case are one.

    Args:
        name: any of its names; ` Karras` may follow, as in `DPM++ 2M Karras`.
        schedule: AUTOMATIC1111's schedule type: `Karras`, `Automatic` (the model's own) or None.

    Raises:
        RequestError: an unknown sampler, or one that the schedule does not go with.
    """
    text, karras = name.strip().lower(), False
    for ending in _KARRAS_ENDINGS:
        if text.endswith(ending):
            text, karras = text.removesuffix(ending), True
    for scheduler in SCHEDULERS:
        if text in {each.lower() for each in (scheduler, SAMPLER_NAMES[scheduler], *ALIASES[scheduler])}:
            break
    else:
        known = ", ".join(f"{SAMPLER_NAMES[each]} ({each})" for each in SCHEDULERS)
        raise RequestError("scheduler", f"scheduler {name!r} is not one of {known}; {_with_karras()}")
    if schedule and schedule.lower() not in ("automatic", "use same scheduler"):
        if schedule.lower() != "karras":
            raise RequestError(
                "schedule", f"schedule {schedule!r} is not offered; leave it out, or write 'Automatic' or 'Karras'"
            )
        karras = True
    if karras and scheduler not in KARRAS:
        field, value = ("schedule", schedule) if schedule else ("scheduler", name)
        raise RequestError(field, f"{field} {value!r} is not offered with {SAMPLER_NAMES[scheduler]}; {_with_karras()}")
    return scheduler, karras


def _with_karras() -> str:
    return f"{' and '.join(SAMPLER_NAMES[each] for each in KARRAS)} may end in ' Karras'"
