"""A language model behind HTTP, as a Ray Serve application.

serve run apps.llm:app                                   # the demo model
serve run apps.llm:build model=PATH max_batch_size=64    # any other; the fields are LLMConfig's
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `app` and `build` on first use, so that scripts that only use apps.llm.engine need no Ray."""
    if name in ("app", "build"):
        from apps.llm.server import build
        from apps.serving.ingress.direct_ingress import prefer_direct_ingress
        from apps.serving.shutdown import finish_requests_first
        from ray_configs.llm import LLMConfig

        prefer_direct_ingress()  # before `serve run` starts Ray
        finish_requests_first()
        return build if name == "build" else build(LLMConfig())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
