"""A plan's verdict is the first line of standard output; standard error tells what is going on. The compiler is stood
in for by plans with known numbers."""

import re
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from apps.plan import answering, commandline
from apps.plan.llm import planner as llm_planner
from apps.plan.llm import search
from apps.plan.llm.report import LLMPlan, MemoryOfChip, ServingRates, StepReport
from apps.plan.stable_diffusion import planner as pictures_planner
from apps.plan.stable_diffusion.report import ImagePlan, Program, Rate

LLAMA = "ray_configs.catalog.llama3_8b_v5e"
PICTURES = "ray_configs.catalog.stable_diffusion_v4"
LONG = "/mnt/checkpoints/" + "a-team-with-a-long-name/" * 5 + "model"
"""Longer than a line of what is written to a pipe, 120."""
SAME = {"chips": 8, "devices_per_chip": 1, "notes": [], "slice": "v5e:2x4:8t"}


def ones(part: type[BaseModel], **values: Any) -> Any:
    """A part of a plan whose other numbers are 1."""
    return part(**(dict.fromkeys(part.model_fields, 1) | values))


def language(fits: bool, model: str = "llama") -> LLMPlan:
    memory, step = ones(MemoryOfChip, total=9.5 if fits else 18.25, usable=15.75, fits=fits), ones(StepReport)
    words = {"model": model, "architecture_from": "", "weights": "int8", "kv_cache": "int8", "label": "computed"}
    lists = {"mesh": {"data": 1, "tensor": 8}, "batches": [], "layers_compiled": [2], "experts": None}
    rates = {"decode": step, "prefill": step, "at_floor": ones(ServingRates), "estimate": ones(ServingRates)}
    made: LLMPlan = ones(LLMPlan, **SAME, **words, **lists, **rates, memory=memory)
    return made


def pictures(*fit: bool, model: str = "sd") -> ImagePlan:
    program = ones(Program, name="a step")
    rates = [ones(Rate, pictures=2**i, fits=each) for i, each in enumerate(fit)]
    words = {"model": model, "configs_from": "", "size": "512x512", "dtype": "bfloat16", "label": "computed"}
    programs = {"denoising": [program], "decoder": program, "text_encoder": program, "control": program}
    made: ImagePlan = ones(ImagePlan, **SAME, **words, **programs, guided=True, rates=rates)
    return made


def found(*chosen: str) -> search.Found:
    return search.Found(wanted_ms=25, chosen=list(chosen), candidates=[])


TAKES = "of 15.75 GiB of each chip"
EACH = "at once on each chip"


@pytest.mark.parametrize(
    ("plan", "options", "first"),
    [
        (language(True), [], f"llama on v5e:2x4:8t: fits, 9.50 {TAKES}"),
        (language(False), [], f"llama on v5e:2x4:8t: DOES NOT FIT, 18.25 {TAKES}"),
        (language(True, LONG), [], f"{LONG} on v5e:2x4:8t: fits, 9.50 {TAKES}"),
        (pictures(True, True, False), [], f"sd, 512x512, on v5e:2x4:8t: fits, up to 2 pictures {EACH}"),
        (pictures(False), [], "sd, 512x512, on v5e:2x4:8t: DOES NOT FIT"),
        (pictures(True, model=LONG), [], f"{LONG}, 512x512, on v5e:2x4:8t: fits, up to 1 pictures {EACH}"),
        (found("v6e:2x2"), ["--search"], "Cheapest that fits at 25 ms per token: v6e:2x2"),
        (found(), ["--search"], "Cheapest that fits at 25 ms per token: none of those tried"),
    ],
)
def test_the_verdict_is_the_first_line(
    plan: LLMPlan | ImagePlan | search.Found, options: list[str], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((llm_planner, "plan"), (pictures_planner, "plan"), (search, "search")):
        monkeypatch.setattr(module, name, lambda *_: plan)
    done = CliRunner().invoke(commandline.app, [PICTURES if isinstance(plan, ImagePlan) else LLAMA, *options])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == first


LLAMA_TO = "compiling the programs of meta-llama/Meta-Llama-3-8B for v5e:2x4:8t"
PICTURES_TO = "compiling the programs of CompVis/stable-diffusion-v1-4 for v4:2x2x1"


@pytest.mark.parametrize(
    ("module", "made", "arguments", "what", "parts"),
    [
        (llm_planner, language(True), [LLAMA], LLAMA_TO, False),
        (pictures_planner, pictures(True), [PICTURES], PICTURES_TO, True),
        (search, found(), [LLAMA, "--search"], "looking for a slice for meta-llama/Meta-Llama-3-8B", True),
    ],
    ids=["a language model", "Stable Diffusion", "a search"],
)
def test_there_is_a_sign_of_life_at_once_and_while_it_compiles(
    module: ModuleType,
    made: BaseModel,
    arguments: list[str],
    what: str,
    parts: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The stand-in of the compiler ends when it has read what must be said meanwhile."""

    def wait_for(lines: list[str], last: str) -> None:
        while not any(re.fullmatch(last, line) for line in lines):
            read = capsys.readouterr()
            assert read.out == ""
            lines += read.err.splitlines()

    def compiled(*given: Any) -> BaseModel:
        lines: list[str] = []
        wait_for(lines, re.escape(what) + r": \d+ s")
        assert lines[0] == f"{what}: a minute or more"
        if parts:
            given[-1]("compiling the second part")
            wait_for([], r"compiling the second part: \d+ s")
        return made

    monkeypatch.setattr(answering, "ALIVE_S", 0.01)
    monkeypatch.setattr(module, "search" if module is search else "plan", compiled)
    commandline.app(arguments, standalone_mode=False)
    assert len(capsys.readouterr().out.splitlines()) > 1
