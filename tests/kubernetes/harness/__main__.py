"""What `make test-kubernetes` and `make kubernetes` run."""

import argparse
import os
import sys

from tests.kubernetes.harness import building, namespace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the control plane and KubeRay's operators into the cache")
    test = commands.add_parser("test", help="build, then run pytest in namespaces of its own")
    test.add_argument("--kubeconfig", help="run on this cluster instead of one that the harness starts")
    stay = commands.add_parser("stay", help="build, then leave a cluster running that a config is applied to")
    stay.add_argument("config", help="module or file, as `python -m kuberay render` takes it")
    stay.add_argument("--hosts", type=int, default=2, help="hosts of a slice, at most; 0: as many as the config has")
    arguments, rest = parser.parse_known_args()
    if arguments.command != "test" and rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        if arguments.command == "build":
            building.build_all()
            return 0
        if arguments.command == "stay":
            return inside([sys.executable, "-m", f"{__package__}.staying", arguments.config, str(arguments.hosts)])
        return run_tests(arguments.kubeconfig, rest)
    except building.BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_tests(kubeconfig: str | None, pytest_arguments: list[str]) -> int:
    """Runs pytest and returns its exit status. Tests marked `long` run only if the arguments select them with -m."""
    command = [sys.executable, "-m", "pytest", "-m", "kubernetes and not long", *pytest_arguments]
    if not any(os.path.exists(argument.partition("::")[0]) for argument in pytest_arguments):
        command.append("tests/kubernetes")
    if kubeconfig:
        os.environ["PODSLICE_TEST_KUBECONFIG"] = os.path.abspath(kubeconfig)
        os.execv(command[0], command)
    return inside(command)


def inside(command: list[str]) -> int:
    """Builds what is missing, runs the command in namespaces of its own and returns its exit status."""
    if said := namespace.missing():
        print(f"error: {said}", file=sys.stderr)
        return 2
    building.build_all()
    return namespace.run(command)


if __name__ == "__main__":
    sys.exit(main())
