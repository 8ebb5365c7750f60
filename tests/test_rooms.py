"""Who imports whom: each room stays usable without what only another one needs."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("ray_configs.llm", ("jax", "ray", "torch", "kubernetes", "numpy")),
        ("apps.llm.engine", ("ray", "torch", "fastapi")),
        ("apps.llm.engine.follower", ("ray", "torch", "fastapi")),
        ("apps.llm.slice", ("jax", "torch", "transformers")),
        ("apps.llm.server", ("jax", "torch", "transformers")),
        ("apps.llm", ("jax", "ray", "torch", "transformers")),
        ("apps.cell", ("jax", "ray", "torch")),
        ("apps.cell.admin", ("jax", "ray", "torch", "fastapi", "numpy")),
        ("apps.cell.server", ("jax", "torch", "transformers")),
        ("apps.cell.http", ("jax", "ray", "torch")),
        ("apps.batch.smoke", ("jax", "ray", "torch", "numpy")),
        ("apps.batch.prepare", ("jax", "ray", "torch", "numpy")),
        ("apps.batch.preparation", ("ray", "torch", "transformers")),
        ("apps.stable_diffusion.engine.engine", ("jax", "ray", "torch", "diffusers", "fastapi", "PIL")),
        ("apps.stable_diffusion.server", ("jax", "torch", "transformers", "diffusers", "PIL")),
        ("apps.stable_diffusion.http", ("jax", "torch", "transformers", "diffusers")),
        ("apps.stable_diffusion", ("jax", "ray", "torch", "diffusers")),
    ],
)
def test_a_room_does_not_pull_in_another(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_test_file_has_a_name_of_its_own() -> None:
    """Tests import their neighbours by bare name, so two files of one name hide each other when all rooms run at once:
    what passes room by room would not pass whole."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
