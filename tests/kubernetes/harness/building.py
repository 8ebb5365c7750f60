"""The control plane and KubeRay's operator, built once from their Go modules into a cache outside the checkout.

A binary's folder is named after what it was built from: go.mod, go.sum, the sources beside them and Go's own version.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

MODULES = Path(__file__).parents[1]
GATEWAY_MODULE = "sigs.k8s.io/gateway-api"
OPERATOR_PACKAGE = "github.com/ray-project/kuberay/ray-operator"
OPERATOR_VERSIONS = tuple(sorted((path.name for path in (MODULES / "operator").iterdir()), reverse=True))
DEFAULT_OPERATOR = os.environ.get("PODSLICE_KUBERAY", OPERATOR_VERSIONS[0])
PROGRESS_S = 20
KEPT_S = 30 * 24 * 3600  # since it was last asked for: other checkouts may use other versions
LAYOUT = "2"  # of a binary's folder
NEEDED_BYTES = 6 * 2**30  # modules, Go's build cache and the binaries, from nothing


class BuildError(Exception):
    """A binary could not be built; the message says why and what to do."""


@dataclass(frozen=True)
class Operator:
    """KubeRay's operator and the CRDs that belong to it."""

    version: str
    binary: Path
    crds: Path


def cache_folder() -> Path:
    """Where binaries are kept: $PODSLICE_KUBERNETES_CACHE, or a folder in the user's cache."""
    if chosen := os.environ.get("PODSLICE_KUBERNETES_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "podslice", "kubernetes-test")


def control_plane_binary() -> Path:
    """Path of the control plane binary, which must have been built. `kubectl` beside it is the same program."""
    return _built(MODULES / "controlplane", "controlplane") / "controlplane"


def operator(version: str = DEFAULT_OPERATOR) -> Operator:
    """The operator of a version, which must have been built, or a developer's own.

    $PODSLICE_OPERATOR names a binary called ray-operator-VERSION, and $PODSLICE_CRDS the folder of its CRDs.
    """
    own = os.environ.get("PODSLICE_OPERATOR")
    if own and version == DEFAULT_OPERATOR:
        name, _, own_version = Path(own).name.rpartition("-")
        crds = os.environ.get("PODSLICE_CRDS")
        if not crds:
            raise BuildError(f"PODSLICE_OPERATOR={own} needs PODSLICE_CRDS, the folder of that version's CRDs, too")
        return Operator(own_version if name == "ray-operator" else "own", Path(own), Path(crds))
    folder = _built(_operator_module(version), f"ray-operator-{version}")
    return Operator(version, folder / "ray-operator", folder / "crds")


def gateway_crds() -> Path:
    """The Gateway API's CRDs, in the version that the operator was built with."""
    version = OPERATOR_VERSIONS[0]
    return _built(_operator_module(version), f"ray-operator-{version}") / "gateway-crds"


def build_all(operators: tuple[str, ...] = OPERATOR_VERSIONS) -> None:
    """Builds what is not in the cache yet, with a line of progress every 20 seconds.

    Raises:
        BuildError: Go is missing, the disk is full, or the build failed.
    """
    _build(MODULES / "controlplane", "controlplane", ".", "controlplane")
    for version in operators:
        _build(_operator_module(version), f"ray-operator-{version}", OPERATOR_PACKAGE, "ray-operator")


def _operator_module(version: str) -> Path:
    if version not in OPERATOR_VERSIONS:
        raise BuildError(f"no operator {version}: there are {', '.join(OPERATOR_VERSIONS)}")
    return MODULES / "operator" / version


def _go(*arguments: str, module: Path) -> str:
    try:
        done = subprocess.run(["go", *arguments], cwd=module, env=_environment(), capture_output=True, text=True)
    except FileNotFoundError:
        raise BuildError(
            "Go is not on the PATH, and the control plane is built with it. Install Go 1.26 or newer "
            "(https://go.dev/doc/install; an older one since 1.21 fetches what it needs by itself)."
        ) from None
    if done.returncode:
        raise BuildError(f"go {' '.join(arguments)} in {module}: {done.stderr.strip()}")
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false", "GOWORK": "off"}


def _source(required: str, module: Path) -> Path:
    """Folder with the sources of a module that ours requires."""
    return Path(_go("list", "-m", "-f", "{{.Dir}}", required, module=module))


def _folder(module: Path, name: str) -> Path:
    go = _go("env", "GOVERSION", "GOOS", "GOARCH", module=module)
    inputs = hashlib.sha256(f"{LAYOUT} {go}".encode())
    for path in sorted(path for path in module.iterdir() if path.suffix in (".mod", ".sum", ".go")):
        inputs.update(path.name.encode() + path.read_bytes())
    return cache_folder() / f"{name}-{inputs.hexdigest()[:12]}"


def _built(module: Path, name: str) -> Path:
    folder = _folder(module, name)
    if not folder.is_dir():
        raise BuildError(f"{name} is not built: `make test-kubernetes` builds it into {folder.parent}")
    os.utime(folder)
    return folder


def _build(module: Path, name: str, package: str, program: str) -> None:
    folder = _folder(module, name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{name}.lock"):  # of two builders the second finds it done
        if folder.is_dir():
            return
        free = shutil.disk_usage(folder.parent).free
        if free < NEEDED_BYTES:
            print(f"== only {free / 2**30:.1f} GiB free for {folder.parent}: a build from nothing needs 6", flush=True)
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _compile(module, name, package, unfinished / program)
        if program == "controlplane":
            (unfinished / "kubectl").symlink_to(program)
        else:
            shutil.copytree(_source(OPERATOR_PACKAGE, module) / "config" / "crd" / "bases", unfinished / "crds")
            shutil.copytree(
                _source(GATEWAY_MODULE, module) / "config" / "crd" / "standard", unfinished / "gateway-crds"
            )
        unfinished.rename(folder)
        for other in folder.parent.glob(f"{name}-????????????"):
            if time.time() - other.stat().st_mtime > KEPT_S:
                shutil.rmtree(other, ignore_errors=True)


def _compile(module: Path, name: str, package: str, binary: Path) -> None:
    log = binary.with_suffix(".log")
    began = time.monotonic()
    print(f"== building {name} (minutes the first time; kept in {binary.parents[1]})", flush=True)
    with log.open("w") as output:
        building = subprocess.Popen(
            ["go", "build", "-v", "-ldflags=-s -w", "-o", str(binary), package],
            cwd=module, env=_environment(), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while True:
                try:
                    status = building.wait(PROGRESS_S)
                    break
                except subprocess.TimeoutExpired:
                    _progress(name, log, time.monotonic() - began)
        finally:
            if building.poll() is None:
                building.terminate()
                building.wait()
    said = log.read_text()
    if status:
        if "no space left on device" in said:
            raise BuildError(f"the disk is full: building {name} needs about 6 GiB in `go env GOCACHE GOMODCACHE`")
        raise BuildError(f"go build of {name} failed:\n{said[-3000:]}")
    log.unlink()
    print(f"== {name} is built, after {time.monotonic() - began:.0f} s", flush=True)


def _progress(name: str, log: Path, seconds: float) -> None:
    lines = log.read_text().splitlines()
    modules = sum(line.startswith("go: downloading") for line in lines)
    print(
        f"== {name}: {seconds:.0f} s, {modules} modules downloaded, {len(lines) - modules} packages compiled",
        file=sys.stdout, flush=True,
    )  # fmt: skip
