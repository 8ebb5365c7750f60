"""A cell as a map: each slice with its hosts, which model it runs, and which models wait for what."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray_configs.tpu import TpuSlice

FREE = "free"


@dataclass(frozen=True)
class SliceBox:
    """One slice, or one replica's share of the CPUs."""

    model: str = ""
    state: str = FREE
    address: str = ""
    """IP address of the replica's process."""


def boxes(cell: Mapping[str, Any]) -> list[SliceBox]:
    """The slices of a cell, as GET /cell answers: those with a replica first, then the free ones."""
    drawn: list[SliceBox] = []
    for entry in cell["models"]:
        running = [SliceBox(entry["model"], each["state"], each["address"]) for each in entry["replicas"]]
        missing = entry["assigned_replicas"] - len(running)
        drawn += running + [SliceBox(entry["model"], "ASSIGNED")] * missing
    total = cell["slices"]["total"] or 0
    return drawn + [SliceBox()] * (total - len(drawn))


def waiting(cell: Mapping[str, Any]) -> list[str]:
    """One sentence for each model that waits, fails or unloads."""
    sentences = []
    for entry in cell["models"]:
        if entry["reason"]:
            sentences.append(f"{entry['model']} ({entry['state']}): {entry['reason']}")
        elif entry["active_replicas"] < entry["max_replicas"]:
            ready = f"{entry['active_replicas']} of {entry['max_replicas']} replicas answer"
            sentences.append(f"{entry['model']} ({entry['state']}): {ready}")
    return sentences + [f"{model}: unpublished, and finishes its open requests" for model in cell["unloading"]]


def hosts(kind: str) -> int:
    """The hosts of a slice such as `v5e:4x8`; 1 for CPUs and for kinds that this version does not know."""
    try:
        return TpuSlice(*kind.split(":")).hosts
    except (TypeError, ValueError):
        return 1


def cell_html(cell: Mapping[str, Any]) -> str:
    """The map."""
    slices = cell["slices"]
    kind, number = slices["kind"], hosts(slices["kind"])
    of = "on CPUs"
    if slices["total"]:
        of = f"{slices['in_use']} of {slices['total']} slices in use, each {kind}; hosts of each: {number}"
    drawn = "".join(_box(box, number) for box in boxes(cell)) or "<p>Nothing is published.</p>"
    waits = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in waiting(cell))
    return (
        f'<div class="cell"><h3>{html.escape(cell["sax_cell"])}: {html.escape(of)}</h3>'
        f'<div class="slices">{drawn}</div><ul class="waiting">{waits}</ul>{_table(cell)}</div>'
    )


def _box(box: SliceBox, number: int) -> str:
    hosts = "".join(f'<i title="host {index}"></i>' for index in range(number))
    kind = {FREE: "free", "RUNNING": "running"}.get(box.state, "starting")
    where = f" on {box.address}" if box.address else ""
    return (
        f'<div class="slice {kind}"><div class="hosts">{hosts}</div><b>{html.escape(box.model)}</b>'
        f"<span>{html.escape(box.state.lower() + where)}</span></div>"
    )


def _table(cell: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(entry['model'])}</td><td>{html.escape(entry['model_path'])}</td>"
        f"<td>{entry['state']}</td><td>{entry['active_replicas']} of {entry['max_replicas']}</td></tr>"
        for entry in cell["models"]
    )
    head = "<tr><th>model</th><th>model path</th><th>state</th><th>replicas that answer</th></tr>"
    return f"<table>{head}{rows}</table>" if rows else ""
