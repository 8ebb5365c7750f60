"""Finding a config by module or file, and what is said when there is none, several, or one that does not load."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ray_configs.job import Job
from ray_configs.loading import ConfigError, catalog, load
from ray_configs.service import Service

GOOD = """
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(name="mine", applications=(Application(config=LLMConfig()),))
"""
JOB = """
from ray_configs.job import Job

job = Job(name="mine-too", command=("true",))
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the folder that the test runs in, which modules are found in as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write_text(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    return write_text


def refusal(source: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load(source)
    return str(raised.value)


class TestFound:
    def test_by_module(self) -> None:
        config = load("ray_configs.catalog.local")
        assert isinstance(config, Service)
        assert config.name == "podslice-local"

    def test_by_absolute_and_relative_file(self, write: Write) -> None:
        path = write("deploy/mine.py", GOOD)
        for source in (str(path), "deploy/mine.py", "./deploy/mine.py", "deploy/../deploy/mine.py"):
            assert load(source).name == "mine"

    def test_by_name(self, write: Write) -> None:
        path = write("both.py", GOOD + JOB)
        assert isinstance(load(f"{path}:service"), Service)
        assert isinstance(load(f"{path}:job"), Job)
        assert load("ray_configs.catalog.local:service").name == "podslice-local"

    def test_one_config_under_two_names_is_one(self, write: Write) -> None:
        assert load(str(write("alias.py", GOOD + "app = service\n"))).name == "mine"

    def test_a_file_is_read_anew_each_time(self, write: Write) -> None:
        path = write("edited.py", GOOD)
        assert load(str(path)).name == "mine"
        write("edited.py", GOOD.replace("mine", "changed-since"))
        assert load(str(path)).name == "changed-since"

    def test_a_file_of_any_name(self, write: Write) -> None:
        for name in ("with-dash.py", "with space.py", "with.dot.py", "1st.py", "json.py", "größe.py"):
            assert load(str(write(f"odd/{name}", GOOD))).name == "mine"

    def test_a_file_may_import_what_lies_beside_it(self, write: Write) -> None:
        write("team/shared_by_the_team.py", "NAME = 'mine'\n")
        path = write("team/one.py", "from shared_by_the_team import NAME\n" + GOOD.replace('"mine"', "NAME"))
        assert load(str(path)).name == "mine"

    def test_a_module_of_a_package_of_ones_own(self, write: Write) -> None:
        write("fleet/__init__.py", "")
        write("fleet/names.py", "NAME = 'mine'\n")
        write("fleet/one.py", "from .names import NAME\n" + GOOD.replace('"mine"', "NAME"))
        assert load("fleet.one").name == "mine"


class TestNotFound:
    def test_a_missing_file(self, write: Write) -> None:
        assert refusal("nothing/here.py") == "there is no file nothing/here.py"

    def test_a_folder(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "folder.py").mkdir()
        assert refusal("folder.py") == "there is no file folder.py"
        assert "neither a .py file nor a module path" in refusal(str(tmp_path))
        assert "neither a .py file nor a module path" in refusal(".")

    def test_a_missing_module_is_answered_with_the_catalog(self) -> None:
        message = refusal("ray_configs.catalog.lokal")
        assert "there is no module 'ray_configs.catalog.lokal'" in message
        assert "ray_configs.catalog.local" in message

    def test_the_last_part_of_a_catalog_name_is_answered_with_the_whole(self) -> None:
        assert refusal("llama3_8b_v5e").endswith("ready ones: ray_configs.catalog.llama3_8b_v5e")

    def test_a_module_below_a_module(self) -> None:
        assert "there is no module 'ray_configs.catalog.local.x'" in refusal("ray_configs.catalog.local.x")

    @pytest.mark.parametrize("source", ["", ":", "::", "..", "a/b", "a b", "a..b", ".a", "a.", "-", "a\0b", "v5e:2x4"])
    def test_odd_strings(self, source: str) -> None:
        message = refusal(source)
        assert repr(source.partition(":")[0]) in message
        assert "ray_configs.catalog." in message

    def test_no_config_in_it(self, write: Write) -> None:
        path = write("empty.py", "x = 1\n")
        assert refusal(str(path)) == (
            f"{path} defines no Service or Job; write, say, service = Service(name=..., applications=...)"
        )

    def test_several(self, write: Write) -> None:
        path = write("both.py", GOOD + JOB)
        assert refusal(str(path)) == f"{path} defines several configs; choose one: {path}:service, {path}:job"

    def test_another_name(self, write: Write) -> None:
        path = write("both.py", GOOD + JOB)
        assert refusal(f"{path}:jab") == f"{path} has no Service or Job named 'jab'; it has service, job"
        assert refusal(f"{write('empty.py', 'x = 1')}:x").endswith("named 'x'; it has none")


class TestBroken:
    def test_a_file_that_is_no_python(self, write: Write) -> None:
        message = refusal(str(write("typo.py", "a = 1\nb = = 2\n")))
        assert "SyntaxError" in message
        assert "typo.py, line 2" in message

    def test_an_error_in_a_file_comes_with_its_place(self, write: Write) -> None:
        path = write("wrong.py", "a = 1\n\nb = a / 0\n")
        assert refusal(str(path)) == (
            f"{path} failed while it was read: ZeroDivisionError: division by zero ({path}, line 3)"
        )

    def test_an_error_within_a_library_is_placed_in_the_file_that_called_it(self, write: Write) -> None:
        path = write("wrong.py", "import json\n\njson.loads('{')\n")
        assert refusal(str(path)).endswith(f"({path}, line 3)")

    @pytest.mark.parametrize("error", ["ValueError", "TypeError", "KeyError", "RuntimeError"])
    def test_an_error_in_a_module_is_told_as_it_is(self, error: str, write: Write) -> None:
        path = write(f"raises_{error.lower()}.py", f"a = 1\nraise {error}('of its own')\n")
        message = refusal(path.stem)
        assert f"{error}: " in message
        assert "of its own" in message
        assert message.endswith(f"({path}, line 2)")

    def test_a_file_that_exits(self, write: Write) -> None:
        path = write("exits.py", "import sys\nsys.exit('usage: no')\n")
        assert refusal(str(path)).endswith(f"SystemExit: usage: no ({path}, line 2)")

    def test_a_module_that_needs_what_is_not_installed(self, write: Write) -> None:
        write("needy.py", "import a_package_that_is_not_there\n" + GOOD)
        assert refusal("needy") == "needy needs the module a_package_that_is_not_there, which is not installed"

    def test_a_file_that_needs_what_is_not_installed(self, write: Write) -> None:
        message = refusal(str(write("needy.py", "import a_package_that_is_not_there\n" + GOOD)))
        assert "No module named 'a_package_that_is_not_there'" in message
        assert "needy.py, line 1" in message

    def test_a_relative_import_in_a_file(self, write: Write) -> None:
        message = refusal(str(write("relative.py", "from . import names\n")))
        assert "attempted relative import" in message
        assert "relative.py, line 1" in message

    @pytest.mark.parametrize("by", ["file", "module"])
    def test_an_invalid_config_is_explained_field_by_field(self, by: str, write: Write) -> None:
        text = GOOD.replace("LLMConfig()", "LLMConfig(slize='v5e:2x2', page_size=4)")
        path = write(f"invalid_by_{by}.py", text)
        source = str(path) if by == "file" else path.stem
        first, *complaints = refusal(source).splitlines()
        assert first == f"{source} is not a valid config ({path}, line 5):"
        assert complaints == [
            "  LLMConfig.page_size: Input should be greater than or equal to 8 (got 4)",
            "  LLMConfig.slize: Extra inputs are not permitted: did you mean slice? (got 'v5e:2x2')",
        ]

    def test_an_invalid_slice_says_what_to_write(self, write: Write) -> None:
        path = write("ambiguous.py", GOOD.replace("LLMConfig()", "LLMConfig(slice='v5e:2x4')"))
        assert "LLMConfig.slice: v5e 2x4 comes in two sizes of host; write v5e:2x4:8t" in refusal(str(path))

    def test_a_file_that_does_not_load_leaves_the_import_path_as_it_was(self, write: Write, tmp_path: Path) -> None:
        before = list(sys.path)
        refusal(str(write("deep/wrong.py", "1 / 0\n")))
        load(str(write("deep/right.py", GOOD)))
        assert sys.path == before


class TestCatalog:
    @pytest.mark.parametrize("name", catalog())
    def test_each_config_is_short_loads_and_has_a_valid_name(self, name: str) -> None:
        config = load(name)
        assert isinstance(config, Service | Job)
        assert re.fullmatch(r"[a-z][-a-z0-9]{0,46}", config.name)
        path = Path(__file__).resolve().parents[2].joinpath(*name.split(".")).with_suffix(".py")
        text = path.read_text()
        assert len(text.splitlines()) <= 30
        assert text.startswith('"""')

    def test_names_do_not_clash_in_one_cluster(self) -> None:
        names = [load(name).name for name in catalog()]
        assert len(set(names)) == len(names)

    def test_the_kinds_of_config_are_all_there(self) -> None:
        configs = [load(name) for name in catalog()]
        applications = {type(a.config).__name__ for c in configs if isinstance(c, Service) for a in c.applications}
        assert applications == {"LLMConfig", "StableDiffusionConfig", "CellConfig"}
        hosts = {group.hosts > 1 for c in configs if isinstance(c, Job) for group in c.worker_groups}
        assert hosts == {True, False}
