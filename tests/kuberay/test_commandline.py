"""`python -m kuberay` as a person types it: what is printed where, exit statuses, and what it says of mistakes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from kuberay import commandline
from kuberay.source import Placeholders, read
from ray_configs.loading import load

LOCAL = "ray_configs.catalog.local"
LLAMA = "ray_configs.catalog.llama3_8b_v5e"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command in this process; returns (status, stdout, stderr)."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kuberay", *arguments])
        with pytest.raises(SystemExit) as stop:
            commandline.main()
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    for variable in ("PODSLICE_PROJECT", "PODSLICE_BUCKET", "PODSLICE_KUBERAY_CRDS"):
        monkeypatch.delenv(variable, raising=False)
    return command


def config_file(folder: Path, body: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(
        "from ray_configs.capacity import *\nfrom ray_configs.cloud import *\nfrom ray_configs.exposure import *\n"
        "from ray_configs.llm import LLMConfig\nfrom ray_configs.service import Application, Service\n"
        "from ray_configs.job import Job\n" + body
    )
    return str(path)


def service_file(folder: Path, llm: str = "", **service: str) -> str:
    more = "".join(f", {name}={value}" for name, value in service.items())
    return config_file(
        folder, f"service = Service(name='mine', applications=(Application(config=LLMConfig({llm})),){more})\n"
    )


def test_help_teaches():
    done = subprocess.run([sys.executable, "-m", "kuberay", "--help"], capture_output=True, text=True, check=True)
    assert "ray_configs.catalog.llama3_8b_v5e" in done.stdout
    for command in ("render", "node-pools", "check", "apply", "diff", "status", "delete", "catalog"):
        assert f"\n  {command}" in done.stdout


def test_render_as_a_process_needs_no_client_ray_or_jax():
    code = (
        "import sys; sys.argv = ['kuberay', 'render', 'ray_configs.catalog.whole_graph']\n"
        "from kuberay.commandline import main\n"
        "try:\n    main()\n"
        "finally:\n    print([m for m in ('ray', 'jax', 'torch', 'kubernetes') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.count("kind: RayService") == 1 and done.stderr.strip() == "[]"


def test_a_reader_who_leaves_early_is_no_error():
    program = f"{sys.executable} -m kuberay render ray_configs.catalog.whole_graph | head -1"
    done = subprocess.run(program, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("# Made by") and done.stderr == ""


def test_render_twice_gives_the_same_bytes(run):
    assert run("render", LLAMA) == run("render", LLAMA)


def test_render_fills_in_what_is_given(run):
    _, plain, _ = run("render", "ray_configs.catalog.gemma_7b_it_v5e")
    assert "PROJECT_ID" in plain and "BUCKET_NAME" in plain
    _, filled, _ = run("render", "ray_configs.catalog.gemma_7b_it_v5e", "--project", "p1", "--bucket", "b1")
    assert "PROJECT_ID" not in filled and "BUCKET_NAME" not in filled
    assert "us-docker.pkg.dev/p1/podslice/llm" in filled and "bucketName: b1" in filled


def test_a_buckets_name_reaches_what_applications_are_told(run):
    cell = "ray_configs.catalog.cell_v5e_4x8"
    for options in ((), ("--serve-config",)):
        _, filled, _ = run("render", cell, "--project", "p1", "--bucket", "b1", *options)
        assert "state_uri: gs://b1/cell" in filled and "- gs://b1/models" in filled and "BUCKET_NAME" not in filled
        assert "front_replicas" not in filled, "what the config leaves to its defaults stays unsaid"
    placeholders = Placeholders("p1", "b1")
    assert read(cell, placeholders).config.applications[0].config.state_uri == "gs://b1/cell"
    assert read(cell).config == load(cell)
    status, _, err = run("apply", cell, "--project", "p1")
    assert status == 2 and "BUCKET_NAME" in err and "--bucket" in err


def test_render_into_a_folder(run, tmp_path):
    status, out, err = run("render", LLAMA, LOCAL, "-o", str(tmp_path / "new"))
    assert status == 0 and out == "" and "wrote" in err
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["llama3_8b_v5e.yaml", "local.yaml"]


def test_render_where_it_cannot_write(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("render", LOCAL, "-o", str(tmp_path / "file"))
    assert status == 2 and "cannot write" in err


def test_one_bad_config_of_several_writes_nothing(run, tmp_path):
    status, _, err = run("render", LOCAL, "ray_configs.catalog.nope", "-o", str(tmp_path))
    assert status == 2 and "ray_configs.catalog.nope" in err and not list(tmp_path.iterdir())


def test_serve_config_is_what_serve_run_takes(run):
    from ray.serve.schema import ServeDeploySchema

    status, out, _ = run("render", "--serve-config", LOCAL)
    assert status == 0
    (app,) = ServeDeploySchema.model_validate(YAML(typ="safe").load(out)).applications
    assert app.import_path == "apps.llm:build"
    status, _, err = run("render", "--serve-config", "ray_configs.catalog.smoke_single_host")
    assert status == 2 and "is a job" in err


def test_catalog_lists_each_with_its_first_line(run):
    status, out, _ = run("catalog")
    assert status == 0 and "ray_configs.catalog.spmd_175b" in out and "175-billion" in out
    assert run("catalog", "--names")[1].split() == [line.split()[0] for line in out.splitlines()]


def test_node_pools(run):
    status, out, _ = run("node-pools", "ray_configs.catalog.spmd_175b", "--project", "p1")
    assert status == 0 and "--tpu-topology=4x8" in out and "PROJECT_ID=p1" in out
    assert "delete" in run("node-pools", LLAMA, "--delete")[1]
    assert "google_container_node_pool" in run("node-pools", LLAMA, "--format", "terraform")[1]
    assert run("node-pools", LLAMA, "--format", "terraform", "--delete")[0] == 2
    assert run("node-pools", LLAMA, "--format", "pulumi")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("render", "ray_configs.catalog.nope"), ["no module", "ray_configs.catalog.local"]),
        (("render", "nope.py"), ["there is no file nope.py"]),
        (("render", "json"), ["defines no Service or Job"]),
        (("check", "nope.yaml"), ["nope.yaml", "No such file"]),
        (("render",), ["Missing argument"]),
        (("rendr", LOCAL), ["render"]),
        (("render", LOCAL, "--projekt", "x"), ["--projekt"]),
        (("render", LOCAL, "--project", "My Project"), ["--project", "'My Project'", "my-project"]),
        (("node-pools", LOCAL, "--project", "123456"), ["--project", "'123456'"]),
        (("check", LOCAL, "--bucket", "gs://models"), ["--bucket", "gs://models", "no gs://"]),
        (("render",), ["CONFIG"]),
        (("apply", LOCAL), ["PROJECT_ID", "--project"]),
        (("apply", "ray_configs.catalog.gemma_7b_it_v5e", "--project", "p"), ["BUCKET_NAME", "--bucket"]),
        (("apply", LOCAL, "--project", "p", "--dry-run=client"), ["--dry-run", "client"]),
    ],
)
def test_mistakes_are_said_in_a_line_or_two(run, arguments, words):
    status, out, err = run(*arguments)
    assert status == 2 and out == ""
    assert "Traceback" not in err and all(word in err for word in words)


def test_an_invalid_config_names_the_field(run, tmp_path):
    status, _, err = run("render", service_file(tmp_path, "slice='v5e:3x3', max_batch_size=0, batch=1"))
    assert status == 2
    assert "LLMConfig.slice: v5e has no topology '3x3'; choose one of 1x1, 2x2, 2x4" in err
    assert "LLMConfig.max_batch_size" in err and "LLMConfig.batch: Extra inputs" in err


def test_check_of_the_catalog_raises_no_false_alarm(run):
    """What it does warn of is true: a cell open to its VPC."""
    from ray_configs.loading import catalog

    status, out, _err = run("check", *catalog())
    assert status == 0, out
    lines = [line for line in out.splitlines() if "error" in line.split(":")[0] or "warning" in line.split(":")[0]]
    (open_cell,) = lines
    assert open_cell.startswith("warning: Service/cell exposure"), "as Saxml's tutorials have it"
    assert "[no-api-keys]" in open_cell


def test_check_says_so_when_all_is_well(run):
    assert run("check", LLAMA, "--project", "mine") == (0, f"{LLAMA}: no findings\n", "")
    status, out, _ = run("check", LLAMA)
    assert status == 0 and "PROJECT_ID" in out and "no findings" not in out


@pytest.mark.parametrize(
    ("llm", "service", "rule", "words"),
    [
        ("model='x/llama-70b', slice='v5e:2x4:8t'", {}, "model-too-large", ["130 GiB", "128 GiB", "int8"]),
        ("model='x/mixtral-8x7B', slice='v6e:2x2', dtype='float32'", {}, "model-too-large", ["56B parameters"]),
        ("model='x/qwen-60b', slice='v5e:2x4:8t'", {}, "model-too-large", ["little is left"]),
        ("slice='v5e:2x2', prefix_cache_host_gib=400", {}, "host-memory", ["of a Pod that has", "killed"]),
        ("slice='v5e:2x2', prefix_cache_host_gib=120", {}, "host-memory", ["object store", "at most 9"]),
        ("prefix_cache_host_gib=9", {}, "host-memory", ["of a Pod that has 7"]),
        ("prepared_programs='gs://b/p/programs'", {}, "programs-key", ["compiles its own", "SecretKey"]),
        ("compile_cache='gs://b/compiled'", {}, "programs-key", ["config.compile_cache", "compiles its own"]),
        ("compile_cache='gs://b/compiled'", {}, "bucket-permission", ["may write", "each start compiles its programs"]),
        ("model='meta-llama/Llama-3.2-1B', slice='v5e:1x1'", {}, "gated-model", ["HUGGING_FACE_TOKEN"]),
        ("model='gs://b/model', slice='v5e:1x1'", {}, "bucket-permission", ["403", "mount=None"]),
        (
            "adapters={'sql': 'gs://b/sql'}, slice='v5e:1x1'",
            {},
            "bucket-permission",
            ["config.adapters.sql", "gs://b/sql"],
        ),
        ("", {"exposure": "LoadBalancer(internal=False)"}, "no-api-keys", ["internet", "SecretKey"]),
        ("", {"exposure": "Gateway(gateway_class='gke-l7-global-external-managed')"}, "no-api-keys", ["internet"]),
    ],
)
def test_check_of_a_config(run, tmp_path, llm, service, rule, words):
    status, out, _ = run("check", service_file(tmp_path, llm, **service))
    assert f"[{rule}]" in out and all(word in out for word in words), out
    assert status == (1 if "error: " in out else 0)
    assert run("check", "--strict", service_file(tmp_path, llm, **service))[0] == 1


def test_int8_makes_a_model_fit(run, tmp_path):
    llm = "model='x/llama-70b', slice='v5e:2x4:8t', quantize_weights='int8'"
    assert "model-too-large" not in run("check", service_file(tmp_path, llm))[1]


def test_a_models_size_is_read_from_its_config_where_there_is_one(run, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(
        '{"hidden_size": 12288, "num_hidden_layers": 96, "intermediate_size": 49152, "num_attention_heads": 96, '
        '"vocab_size": 32000}'
    )
    _, out, _ = run("check", service_file(tmp_path, f"model='{tmp_path}/m', slice='v5e:2x4:8t'"))
    assert "config.json" in out and "[model-too-large]" in out


def test_a_model_that_was_prepared_as_int8_takes_half(run, tmp_path):
    (tmp_path / "llama-70b").mkdir()
    config = service_file(tmp_path, f"model='{tmp_path}/llama-70b', slice='v5e:2x4:8t'")
    assert "[model-too-large]" in run("check", config)[1]
    (tmp_path / "llama-70b" / "manifest.json").write_text('{"quantize_weights": "int8"}')
    assert "model-too-large" not in run("check", config)[1]


def test_check_of_foreign_yaml_names_the_line(run, tmp_path):
    _, text, _ = run("render", LLAMA)
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("numOfHosts: 1", "numOfHosts: 2"))
    status, out, err = run("check", str(broken))
    line = next(i for i, text in enumerate(broken.read_text().splitlines(), 1) if "numOfHosts" in text)
    assert status == 1 and f"{broken}:{line}: error" in out and "error" in err


def test_check_reads_standard_input(tmp_path):
    rendered = f"{sys.executable} -m kuberay render {LLAMA} --project mine | {sys.executable} -m kuberay check -"
    done = subprocess.run(rendered, shell=True, capture_output=True, text=True)
    assert done.returncode == 0 and "no findings" in done.stdout


def test_apply_refuses_what_check_calls_an_error(run, tmp_path):
    config = service_file(tmp_path, "model='x/llama-70b', slice='v5e:2x4:8t'")
    status, out, err = run("apply", config, "--project", "p", "--kubeconfig", str(tmp_path / "none"))
    assert status == 2 and out == "" and "[model-too-large]" in err and "--force applies anyway" in err


def test_a_missing_kubeconfig_is_said(run, tmp_path):
    status, _, err = run("apply", LOCAL, "--project", "p", "--kubeconfig", str(tmp_path / "none"))
    assert status == 2 and str(tmp_path / "none") in err and "Traceback" not in err


def test_objects_in_a_list_are_applied_one_by_one(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    a, b, c = ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in names)
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [a, b]}) + "\n---\n" + json.dumps(c))
    assert [item["metadata"]["name"] for item in read(str(file)).each()] == list(names)


@pytest.mark.parametrize("text", ["kind: List", "apiVersion: v1\nkind: ConfigMap", "items: [7]\nkind: List"])
def test_what_is_no_object_is_said(run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(text)
    for command in ("status", "delete", "diff"):
        status, _, err = run(command, str(file))
        assert status == 2 and "every object needs apiVersion, kind and metadata.name" in err
