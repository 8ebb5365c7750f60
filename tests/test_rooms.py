"""Who imports whom: each room stays usable without what only another one needs."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from apps.llm import text

ROOT = Path(__file__).parents[1]
CLIENTS = sorted({path.stem for path in (ROOT / "clients").glob("*.py")} - {"comfyui_podslice"})
"""Without the one that runs in another program, which has torch and numpy."""


def loaded(modules: str, among: tuple[str, ...]) -> list[str]:
    """Which of `among` are imported with `modules`, in an interpreter of their own."""
    program = f"import sys, {modules}; print(*[name for name in {among} if name in sys.modules])"
    environment = dict(os.environ)  # its own: another test may change this process's meanwhile
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


ABSENT = {
    "apps.arrays.model_folder": ("jax", "ray", "torch", "fastapi", "transformers"),
    "apps.arrays.programs, apps.arrays.program_cache": ("ray", "torch", "fastapi", "transformers", "apps.serving"),
    "ray_configs.llm": ("jax", "ray", "torch", "kubernetes", "numpy"),
    "apps.llm.api": ("jax", "ray", "torch", "fastapi", "transformers"),
    "apps.llm.batch_api.runner": ("jax", "ray", "torch", "transformers", "apps.llm.engine.engine"),
    "apps.llm.chat.model_format": ("jax", "ray", "torch", "fastapi", "transformers", "tokenizers", "apps.llm.engine"),
    "apps.llm.engine": ("jax", "ray", "torch", "fastapi", "transformers"),
    "apps.llm.engine.interface": ("jax", "ray", "torch", "fastapi", "transformers", "apps.llm.text", "apps.llm.chat"),
    "apps.llm.text": ("jax", "ray", "torch", "fastapi", "transformers", "tokenizers"),
    "apps.llm.text.engine": ("jax", "ray", "torch", "transformers", "apps.llm.engine.engine"),
    "apps.llm.routed, apps.cell.words": ("jax", "torch", "transformers", "apps.llm.engine.engine"),
    "apps.llm.engine.engine": ("ray", "torch", "fastapi"),
    "apps.llm.engine.hosts.worker": ("ray", "torch", "fastapi"),
    "apps.llm.router.wire.remote, apps.llm.router.wire.served": (
        *("jax", "ray", "torch", "fastapi", "transformers", "apps.llm.text", "apps.llm.engine.engine"),
    ),
    "apps.llm.http.app": ("jax", "ray", "torch", "transformers", "apps.llm.engine.engine", "opentelemetry.sdk"),
    "apps.llm.served.text_model": ("jax", "ray", "torch", "transformers", "apps.llm.engine.engine", "opentelemetry"),
    "apps.llm.slice": ("jax", "torch", "transformers"),
    "apps.llm.server": ("jax", "torch", "transformers", "apps.llm.engine.engine"),
    "apps.serving.replica": ("jax", "torch", "transformers", "apps.llm", "apps.stable_diffusion"),
    "apps.serving.files": ("jax", "ray", "torch", "fastapi", "numpy"),
    "apps.serving.errors": ("jax", "ray", "torch", "fastapi", "numpy"),
    "apps.playground.commandline": ("jax", "ray", "torch", "numpy", "fastapi", "gradio", "apps.serving", "apps.llm"),
    "apps.playground.client, apps.playground.conversation, apps.playground.drawing, apps.playground.slices": (
        *("jax", "ray", "torch", "numpy", "fastapi", "gradio", "PIL", "kuberay", "apps.serving", "apps.llm"),
        *("apps.cell", "apps.stable_diffusion"),
    ),
    "apps.plan.commandline": ("jax", "ray", "torch", "numpy", "rich.table"),
    "apps.plan.llm.search": ("ray", "torch", "fastapi"),
    "apps.llm": ("jax", "ray", "torch", "transformers"),
    "apps.cell": ("jax", "ray", "torch"),
    "apps.cell.admin": ("jax", "ray", "torch", "fastapi", "numpy"),
    "apps.cell.server": ("jax", "torch", "transformers", "apps.llm.engine.engine"),
    "apps.cell.http.app": ("jax", "ray", "torch", "apps.llm"),
    "apps.jobs.smoke": ("jax", "ray", "torch", "numpy"),
    "apps.jobs.prepare": ("jax", "ray", "torch", "numpy"),
    "apps.jobs.preparation": ("ray", "torch", "transformers"),
    "apps.jobs.generate": ("jax", "ray", "torch", "transformers"),
    "apps.jobs.generation.pipeline": ("jax", "torch", "transformers"),
    "apps.stable_diffusion.engine.engine": ("jax", "ray", "torch", "diffusers", "fastapi", "PIL"),
    "apps.stable_diffusion.server": ("jax", "torch", "transformers", "diffusers", "PIL"),
    "apps.stable_diffusion.http.app": ("jax", "ray", "torch", "transformers", "diffusers"),
    "apps.stable_diffusion": ("jax", "ray", "torch", "diffusers"),
    "podslice.commands, podslice.supervisor": ("jax", "ray", "torch", "transformers", "fastapi", "kubernetes"),
    "kuberay.commandline": ("jax", "ray", "torch", "transformers", "fastapi", "numpy", "apps"),
}
"""Modules, and what must not be imported with each."""


@pytest.fixture(scope="module")
def pulled_in() -> Iterator[dict[str, Future[list[str]]]]:
    """What each module pulls in of that: as many interpreters at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {module: pool.submit(loaded, module, absent) for module, absent in ABSENT.items()}


@pytest.mark.slow
@pytest.mark.parametrize("module", ABSENT)
def test_a_room_does_not_pull_in_another(module: str, pulled_in: dict[str, Future[list[str]]]) -> None:
    assert pulled_in[module].result() == []


def test_the_engine_is_there_when_asked_for() -> None:
    assert "Engine" in text.__all__ and all(hasattr(text, name) for name in text.__all__)
    with pytest.raises(AttributeError, match="Motor"):
        _ = text.Motor


def test_clients_need_nothing_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "clients"))
    assert CLIENTS
    absent = ("apps", "ray_configs", "kuberay", "jax", "ray", "torch", "fastapi", "numpy")
    assert loaded(", ".join(CLIENTS), absent) == []


@pytest.mark.parametrize("room", ["apps", "ray_configs", "kuberay", "podslice"])
def test_no_circle_of_imports(room: str) -> None:
    """Those of a function count, for they can hide a circle, and those of a type checker alone."""
    graph = grimp.build_graph(room)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > len(imports) / 2
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


PRODUCT = ("apps", "clients", "kuberay", "podslice", "ray_configs")


def files_of(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in (ROOT / room).rglob("*.py")]


def test_no_folder_is_a_drawer() -> None:
    """A folder is a concept: about a dozen files, besides its __init__."""
    files = (path for path in files_of(*PRODUCT, "tools", "tests") if path.name != "__init__.py")
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in files)
    assert {folder: count for folder, count in counts.items() if count > 12} == {}


def test_no_file_is_too_long_to_read_at_once() -> None:
    """A file is one subject. What has two is cut between them, under two names."""
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files_of(*PRODUCT)}
    assert {name: count for name, count in lines.items() if count > 300} == {}


SAME_IN_BOTH_ENGINES = {"Checkpoint", "Engine", "EngineStats"}
"""Classes of the language model's engine, and of the pictures' for the same thing."""


def test_a_class_name_means_one_thing() -> None:
    nodes = (node for path in files_of(*PRODUCT) for node in ast.walk(ast.parse(path.read_text())))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert {name: count for name, count in counts.items() if count > 1} == dict.fromkeys(SAME_IN_BOTH_ENGINES, 2)


def test_rays_private_api_is_used_in_one_place() -> None:
    """And by the autoscaler of `podslice local`, which starts Ray's own classes and nothing else."""
    private = re.compile(r"ray\.\w*\.?_private|ray\.core\.generated|_get_global_client|_internal=True|_blocking=False")
    serving = ROOT / "apps" / "serving"
    users = {path for path in (ROOT / "apps").rglob("*.py") if private.search(path.read_text())}
    assert users == {serving / "private_ray.py", serving / "machines" / "autoscaler.py"}
