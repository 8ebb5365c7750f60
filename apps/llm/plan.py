"""`python -m apps.llm.plan CONFIG`: `python -m apps.plan` for the language model among CONFIG's applications."""

from apps.plan.commandline import command
from ray_configs.llm import LLMConfig

app = command(LLMConfig)

if __name__ == "__main__":
    app()
