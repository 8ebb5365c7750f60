"""Which published model gets how many of the cell's slices."""

from collections.abc import Mapping

from apps.cell.state import Published


def assign(models: Mapping[str, Published], slices: int | None, placed: Mapping[str, int]) -> dict[str, int]:
    """Replicas of each model that may run now, at most as many as are wanted.

    What is placed stays, then every model gets one, then the rest goes by order of publication: a model is never
    taken off its slice for the sake of another.

    Args:
        models: what is published, by name.
        slices: how many there are to give; None: as many as are wanted.
        placed: replicas that each model was given before.
    """
    if slices is None:
        return {name: model.replicas for name, model in models.items()}
    order = sorted(models, key=lambda name: models[name].order)
    given = dict.fromkeys(order, 0)
    left = slices
    for least in (placed, dict.fromkeys(order, 1), {name: models[name].replicas for name in order}):
        for name in order:
            more = min(least.get(name, 0), models[name].replicas) - given[name]
            taken = max(0, min(more, left))
            given[name] += taken
            left -= taken
    return given
