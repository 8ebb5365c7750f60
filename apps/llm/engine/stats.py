"""What an engine says of itself."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Where the engine stands; counters are totals since it started."""

    running: int
    waiting: int
    pages_total: int
    pages_used: int
    prompt_tokens: int
    generated_tokens: int
    scored_tokens: int
    embeddings: int
    prefix_hit_tokens: int
    preemptions: int
    compiles_after_ready: int
    steps: int
    step_running_s: float  # how long the present turn of the loop has been going on; 0 when idle

    @classmethod
    def together(cls, parts: "list[EngineStats]") -> "EngineStats":
        """Of several copies of the model. Compiles are the process's, the same for each."""
        of_all = {field.name: sum(getattr(part, field.name) for part in parts) for field in fields(cls)}
        for name in ("compiles_after_ready", "step_running_s"):
            of_all[name] = max(getattr(part, name) for part in parts)
        return cls(**of_all)
