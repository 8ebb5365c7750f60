"""`ray_configs` needs pydantic alone: where nothing else is installed, a config still loads."""

import importlib.metadata
import json
import pkgutil
import subprocess
import sys

import ray_configs

MODULES = ["ray_configs", *(m.name for m in pkgutil.walk_packages(ray_configs.__path__, "ray_configs."))]
HEAVY = {
    "apps",
    "jax",
    "jaxlib",
    "kubernetes",
    "numpy",
    "ray",
    "rich",
    "ruamel",
    "torch",
    "transformers",
    "typer",
    "yaml",
}

PROGRAM = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
import {modules}
took = time.perf_counter() - start
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
import json
print(json.dumps([took, sorted(names)]))
"""


def imported(modules: list[str]) -> tuple[float, set[str]]:
    """Seconds, and top-level modules, that importing these takes in a fresh interpreter."""
    program = PROGRAM.format(modules=", ".join(modules))
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, names = json.loads(found.stdout)
    return seconds, set(names)


def pydantics() -> set[str]:
    """Top-level modules of pydantic and of the packages that it requires."""
    wanted, packages = ["pydantic"], set[str]()
    while wanted:
        name = wanted.pop()
        if name not in packages:
            packages.add(name)
            required = importlib.metadata.requires(name) or []
            wanted += [r.split(";")[0].split("=")[0].strip(" <>!~") for r in required if "extra ==" not in r]
    files = (file for name in packages for file in importlib.metadata.files(name) or [])
    return {file.parts[0].removesuffix(".py") for file in files}


def test_only_pydantic_is_needed() -> None:
    seconds, names = imported(MODULES)
    print(f"importing {len(MODULES)} modules of ray_configs took {seconds * 1000:.0f} ms")
    outside = names - set(sys.stdlib_module_names) - pydantics() - {"ray_configs"}
    # The interpreter's own build settings, which sysconfig reads, are a module with the platform in its name.
    assert {name for name in outside if not name.startswith("_sysconfigdata")} == set()


def test_nothing_heavy_is_imported_by_any_module() -> None:
    assert HEAVY.isdisjoint(imported(MODULES)[1])


def test_the_package_itself_imports_nothing() -> None:
    assert imported(["ray_configs"])[1] == {"ray_configs"}
