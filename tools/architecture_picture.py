"""Draws docs/architecture.svg: `python -m tools.architecture_picture`.

Readable on light and dark pages: boxes are filled, and everything outside of them is grey.
"""

from html import escape
from pathlib import Path

PATH = Path(__file__).parents[1] / "docs" / "architecture.svg"
WIDTH, HEIGHT = 920, 500
GREY = "#808890"
CONFIG, TOOL, SERVER, ENGINE, CHIPS = "#fff3c4", "#e3edff", "#e6f4e6", "#d2ecd2", "#f6dfd3"
"""Fill colors: configs, offline tools, HTTP, JAX, hardware."""


def box(x: int, y: int, width: int, height: int, fill: str, title: str, *lines: str) -> str:
    """A box with a bold title and further lines, centered."""
    middle, first = x + width / 2, y + height / 2 + 5 - 8.5 * len(lines)
    texts = [f'<text x="{middle:g}" y="{first:g}" class="title">{escape(title)}</text>']
    texts += [
        f'<text x="{middle:g}" y="{first + 17 * number:g}" class="line">{escape(line)}</text>'
        for number, line in enumerate(lines, 1)
    ]
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}"/>' + "".join(texts)


def arrow(x1: int, y1: int, x2: int, y2: int, says: str = "") -> str:
    """An arrow from the first point to the second, with a label over its middle."""
    word = f'<text x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 - 6:g}" class="grey">{escape(says)}</text>' if says else ""
    return f'<path d="M{x1} {y1}L{x2} {y2}" class="arrow"/>{word}'


def frame(x: int, y: int, width: int, height: int, says: str) -> str:
    """A dashed outline with its name in the upper left corner."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" class="frame"/>'
        f'<text x="{x + 12}" y="{y + 20}" class="grey left">{escape(says)}</text>'
    )


def hosts(x: int, y: int, count: int) -> str:
    """Draws a slice: hosts with four chips each."""
    drawn = ""
    for host in range(count):
        left = x + 46 * host
        drawn += f'<rect x="{left}" y="{y}" width="40" height="40" rx="4" fill="{CHIPS}"/>'
        drawn += "".join(
            f'<rect x="{left + 6 + 15 * (chip % 2)}" y="{y + 6 + 15 * (chip // 2)}" width="13" height="13" rx="2" '
            'class="chip"/>'
            for chip in range(4)
        )
    return drawn


def picture() -> str:
    """The drawing as SVG."""
    parts = [
        box(10, 40, 170, 76, CONFIG, "one typed config", "ray_configs/", "model, slice, replicas"),
        arrow(180, 78, 248, 78),
        box(250, 14, 210, 56, TOOL, "plan", "does it fit? how fast? no TPU"),
        box(480, 14, 210, 56, TOOL, "check", "what would the cluster refuse?"),
        box(250, 86, 210, 56, TOOL, "render, node-pools", "RayService, gcloud, Terraform"),
        box(480, 86, 210, 56, TOOL, "local", "a raylet for each host, on CPUs"),
        box(710, 50, 200, 56, TOOL, "apply, status", "rehearse, roll out, say why"),
        arrow(690, 78, 708, 78),
        arrow(810, 106, 810, 166),
        frame(130, 168, 780, 322, "one Ray cluster: on GKE by KubeRay, or on this machine"),
        box(10, 220, 100, 190, CONFIG, "clients", "OpenAI", "JetStream", "Saxml", "A1111", "curl"),
        arrow(110, 315, 148, 315),
        box(150, 200, 96, 230, SERVER, "HAProxy", "Serve's", "direct", "ingress"),
        arrow(246, 240, 282, 240),
        box(284, 200, 150, 80, SERVER, "language model", "dialects, queue,", "streams"),
        arrow(434, 240, 470, 240),
        box(472, 200, 190, 80, ENGINE, "engine", "schedule, launch,", "read the step before"),
        arrow(662, 240, 700, 240),
        hosts(704, 196, 4),
        hosts(704, 242, 4),
        arrow(246, 330, 282, 330),
        box(284, 294, 150, 72, SERVER, "pictures", "dialects, PNG"),
        arrow(434, 330, 470, 330),
        box(472, 294, 190, 72, ENGINE, "engine", "batches between", "denoising steps"),
        arrow(662, 330, 700, 330),
        hosts(704, 310, 1),
        '<text x="758" y="334" class="grey left">one replica, one slice</text>',
        arrow(246, 410, 282, 410),
        box(284, 380, 150, 60, SERVER, "cell", "publish, unpublish"),
        arrow(434, 410, 470, 410),
        box(472, 380, 190, 60, SERVER, "published models", "server and engine as above"),
        arrow(662, 410, 700, 410),
        hosts(704, 390, 4),
        '<text x="300" y="472" class="grey left">checkpoints and the cell\'s state: a folder or a bucket</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
        "<title>One config becomes manifests, a plan and a Ray cluster in which each replica owns a TPU slice</title>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>\n'
        "<style>text{font-size:13px;text-anchor:middle;fill:#1f2328}.title{font-weight:600;font-size:14px}"
        f".grey{{fill:{GREY}}}.left{{text-anchor:start}}.chip{{fill:#c9653b}}"
        f".arrow{{stroke:{GREY};stroke-width:1.6;fill:none;marker-end:url(#head)}}"
        f".frame{{fill:none;stroke:{GREY};stroke-dasharray:5 4}}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    PATH.write_text(picture())
    print(f"wrote {PATH}")
