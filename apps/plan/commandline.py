"""The command `python -m apps.plan CONFIG`: whether a config fits its slice, and how fast it can be."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from apps.plan.answering import Planned, answer
from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError
from ray_configs.stable_diffusion import StableDiffusionConfig

LANGUAGE = "language model"
SEARCH = "language model, with --search"
WORKLOAD = "language model, for a workload"
PICTURES = "Stable Diffusion"


def command(*kinds: type[Planned]) -> typer.Typer:
    """Builds the command for applications of these kinds."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    def option(text: str, panel: str | None = None, name: str | None = None) -> Any:
        return typer.Option(*([name] if name else []), help=text, rich_help_panel=panel)

    @app.command()
    def main(
        config: Annotated[
            str,
            typer.Argument(
                metavar="CONFIG", help="A module or file that defines a Service, as for kuberay; or a plan's JSON."
            ),
        ],
        name: Annotated[str | None, option("Which application, where there are several.", name="--app")] = None,
        slice: Annotated[str | None, option("Another slice than the config's, such as v6e:2x4:8t.")] = None,
        set: Annotated[list[str] | None, option("Change a field: --set quantize_weights=int8")] = None,
        json: Annotated[bool, option("Write JSON instead of tables.", name="--json")] = False,
        context: Annotated[int | None, option("Tokens in each sequence as it decodes.", LANGUAGE)] = None,
        prompt: Annotated[int | None, option("Tokens of a prompt, for its time to first token.", LANGUAGE)] = None,
        whole: Annotated[bool, option("Compile all layers, not a few to extrapolate.", LANGUAGE, "--whole")] = False,
        search: Annotated[bool, option("Find the cheapest slice instead.", LANGUAGE, "--search")] = False,
        ms_per_token: Annotated[float | None, option("The longest time per token.", SEARCH)] = None,
        generation: Annotated[list[str] | None, option("Look only at this generation.", SEARCH)] = None,
        most_chips: Annotated[int | None, option("Only slices of at most this many chips (64).", SEARCH)] = None,
        price: Annotated[list[str] | None, option("Dollars a chip-hour: v5e=1.20", SEARCH)] = None,
        trace: Annotated[
            Path | None, option("Recorded requests, as Mooncake, Bailian, AIPerf or Azure write them.", WORKLOAD)
        ] = None,
        prompt_tokens: Annotated[
            str | None, option("Or their prompts: 512, 32:512 (uniform), normal:MEAN:DEVIATION, ...", WORKLOAD)
        ] = None,
        output_tokens: Annotated[str | None, option("And their answers, likewise.", WORKLOAD)] = None,
        shared_prefix: Annotated[int | None, option("Tokens that all prompts begin with.", WORKLOAD)] = None,
        rate: Annotated[float | None, option("Requests a second; with --trace, in place of its own.", WORKLOAD)] = None,
        concurrency: Annotated[int | None, option("Or so many at a time.", WORKLOAD)] = None,
        requests: Annotated[int | None, option("How many, or the first ones of a trace (2000).", WORKLOAD)] = None,
        replicas: Annotated[int | None, option("Default: the config's fewest.", WORKLOAD)] = None,
        slo: Annotated[str | None, option("What to keep to: ttft=2s,tpot=40ms,share=0.99", WORKLOAD)] = None,
        seed: Annotated[int | None, option("Of requests that are drawn (0).", WORKLOAD)] = None,
        chart: Annotated[Path | None, option("Draw the run: an SVG file.", WORKLOAD)] = None,
        model: Annotated[str | None, option("Another model than the config's.", PICTURES)] = None,
        size: Annotated[str | None, option("WIDTHxHEIGHT; default: the config's first.", PICTURES)] = None,
        steps: Annotated[int | None, option("Denoising steps; default: the config's.", PICTURES)] = None,
        pictures: Annotated[str | None, option("At once on each chip, each compiled (1,2,4,8).", PICTURES)] = None,
    ) -> None:
        """Compile CONFIG's programs with XLA's TPU compiler for its slice, and say what fits and how fast it can be.

        With --trace or --prompt-tokens, also what a workload gets there. CONFIG may be such a plan of --json: it is
        made again, with the same options and those given.
        """
        # `kinds` is among the locals because this function uses it.
        every = {option: value for option, value in locals().items() if option not in ("config", "json", "kinds")}
        given = {option: value for option, value in every.items() if value is not False and value not in (None, [])}
        try:
            made, show = answer(config, given, kinds)
        except ConfigError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        if json:
            typer.echo(made.model_dump_json(indent=2))
        else:
            from rich.console import Console

            show(made, Console(width=None if sys.stdout.isatty() else 120))

    return app


app = command(LLMConfig, StableDiffusionConfig)
