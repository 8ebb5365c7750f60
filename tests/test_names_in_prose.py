"""What docstrings, comments and pages name is there: files of the repository, modules, classes and what is in them."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("apps", "ray_configs", "kuberay", "clients", "tools", "examples", "tests")
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
if not TRACKED:  # not a checkout
    TRACKED = [str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
TRACKED = [path for path in TRACKED if (ROOT / path).is_file()]
SOURCES = [path for path in TRACKED if path.endswith(".py") and path.split("/")[0] in ROOMS]
PAGES = [path for path in TRACKED if path.endswith(".md") and "/demo/" not in path]

PATH = re.compile(rf"(?<![\w/.:-])(?:{'|'.join(ROOMS)})/[\w/.-]*\.\w+")
FILE = re.compile(r"`([a-z_]+\.py)`")
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")
MODULE = re.compile(r"(?<![\w.])(?:apps|ray_configs|kuberay)(?:\.\w+)+")


def prose(path: str) -> Iterator[tuple[int, str]]:
    """(line, text) of docstrings and comments; of a page, all of it."""
    text = (ROOT / path).read_text()
    if not path.endswith(".py"):
        yield 1, text
        return
    for node in nodes_of(ROOT / path):
        # Also the strings under a field, which document it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    if "#" not in text:
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Of the whole module."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def names_in(path: Path) -> dict[str, ast.AST | None]:
    """What a module or class body binds; None of what is no class."""
    return _bound(nodes_of(path))


def _bound(nodes: Iterable[ast.AST], but: ast.AST | None = None) -> dict[str, ast.AST | None]:
    found: dict[str, ast.AST | None] = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, None)
        elif isinstance(node, ast.ClassDef) and node is not but:
            found[node.name] = node
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id if isinstance(node, ast.Name) else node.attr, None)
        elif isinstance(node, ast.alias):
            found.setdefault((node.asname or node.name).split(".")[0], None)
    return found


def resolves(start: Path, parts: list[str]) -> bool | None:
    """Whether `a.b.c` is there, seen from a folder; None: that folder has no `a`."""
    at = start / parts[0]
    module = at.with_suffix(".py")
    if not module.is_file() and not (at.is_dir() and list(at.glob("*.py"))):
        return None
    for i, part in enumerate(parts[1:], 1):
        if module.is_file():
            return _in_module(module, parts[i:])
        inside = at / "__init__.py"
        if inside.is_file() and part in names_in(inside):
            return True
        at, module = at / part, at / f"{part}.py"
        if not module.is_file() and not at.is_dir():
            return at.parent.name == "apps" or part in ("app", "build")  # `apps.llm.app` is made when asked for
    return True


def _in_module(module: Path, parts: list[str]) -> bool:
    known = names_in(module)
    if parts[0] not in known:
        return False
    owner = known[parts[0]]
    return len(parts) == 1 or not isinstance(owner, ast.ClassDef) or _in_class(owner, parts[1])


def _in_class(owner: ast.ClassDef, name: str) -> bool:
    """Of a class that inherits, what it inherits is not looked for."""
    return bool(owner.bases) or name in _bound(ast.walk(owner), owner)


@cache
def basenames_under(folder: str) -> frozenset[str]:
    """Of all files that are tracked."""
    return frozenset(name.rsplit("/", 1)[-1] for name in TRACKED if name.startswith(folder))


def wrong(path: str) -> Iterator[str]:
    here = (ROOT / path).parent
    # A bare file name is of a neighbour, or of one below; in tests and pages of any.
    near = "" if path.endswith(".md") or path.startswith("tests/") else f"{here.relative_to(ROOT)}/"
    folders = [here, *(folder for folder in here.parents if folder == ROOT or ROOT in folder.parents)]
    for line, text in prose(path):
        for named in PATH.findall(text):
            named = named.rstrip(".")
            if not list(ROOT.glob(named)) and "*" not in text:
                yield f"{path}:{line}: there is no file {named}"
        for named in FILE.findall(text):
            if named not in basenames_under(near) and named != "my_service.py":
                yield f"{path}:{line}: there is no file {named}"
        for named in {*DOTTED.findall(text), *MODULE.findall(text)}:
            parts = named.split(".")
            if parts[-1] in ("py", "yaml", "md", "json", "NAME") or parts[0] == "lm_cloud" or named == "ray.io":
                continue  # a file, a placeholder, a registered model, a domain
            own = names_in(ROOT / path) if path.endswith(".py") else {}
            if isinstance(owner := own.get(parts[0]), ast.ClassDef):
                found: bool | None = _in_class(owner, parts[1])
            else:
                seen_from = [ROOT] if parts[0] in ROOMS else folders
                found = next((at for folder in seen_from if (at := resolves(folder, parts)) is not None), None)
            if found is False:
                yield f"{path}:{line}: there is no {named}"


@pytest.mark.parametrize("room", [*ROOMS, "pages"])
def test_what_is_named_is_there(room: str) -> None:
    paths = PAGES if room == "pages" else [path for path in SOURCES if path.split("/")[0] == room]
    assert [problem for path in paths for problem in wrong(path)] == []


def test_what_is_not_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = "apps/llm/engine/made_up.py"
    told = '"""`scheduler.Scheduler.schedule`, `engine.lockstep`, `scheduler.Planner`, apps/llm/nothing.py, `no.py`."""'
    (tmp_path / here).parent.mkdir(parents=True)
    (tmp_path / here).write_text(told)
    (tmp_path / "apps/llm/engine/scheduler.py").write_text("class Scheduler:\n    def schedule(self): ...\n")
    (tmp_path / "apps/llm/engine/engine.py").write_text("")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert sorted(problem.partition(": ")[2] for problem in wrong(here)) == [
        "there is no engine.lockstep",
        "there is no file apps/llm/nothing.py",
        "there is no file no.py",
        "there is no scheduler.Planner",
    ]
