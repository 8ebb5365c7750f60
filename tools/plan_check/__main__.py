"""The command: see the package."""

import argparse
import sys

import tools.plan_check
from tools.plan_check import cases, expectations
from tools.plan_check.compiled import compiled
from tools.plan_check.expectations import Kind, NotComparable
from tools.plan_check.traced import traced
from tools.plan_check.turns import turn


def main() -> int:
    every = cases.cases()
    summary = (tools.plan_check.__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tools.plan_check", description=summary)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(every)}; default: all")
    parser.add_argument("--quick", action="store_true", help="compile nothing: compare what a trace says")
    parser.add_argument(
        "--turn", type=int, metavar="DAY", help="compile minutes' worth of programs, other ones each day"
    )
    parser.add_argument("--write", action="store_true", help="regenerate the expectations")
    parser.add_argument("--list", action="store_true", help="print the names")
    arguments = parser.parse_args()
    if arguments.turn is not None and (arguments.quick or arguments.write):
        parser.error("--turn compiles some of the programs and compares them: leave out --quick and --write")
    if unknown := [name for name in arguments.names if name not in every]:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(every)}")
    if arguments.list:
        print("\n".join(every))
        return 0
    names = arguments.names or [name for name in every if arguments.quick or name not in cases.TRACED]
    if arguments.turn is None:
        return max(check(name, every[name], arguments.quick, arguments.write) for name in names)
    try:
        name, only = turn(arguments.turn, {name: expectations.expected(name) for name in names})
    except NotComparable as error:
        return _refused(error)
    return check(name, every[name], only=only)


def check(name: str, config: cases.Case, quick: bool = False, write: bool = False, only: slice = slice(None)) -> int:
    """Compares one config's figures, or writes them. Returns 1 if one grew, 2 if none can be compared."""
    print(f"== {name}", flush=True)
    kind: Kind = "traced" if quick else "programs"
    try:
        before = {} if write else expectations.expected(name, kind)
        expectations.compiler()
    except NotComparable as error:
        return _refused(error)
    found = dict(traced(config) if quick else compiled(config, only))
    if write:
        expectations.write(name, {kind: found} if quick else {"traced": dict(traced(config)), kind: found})
        return 0
    if only != slice(None):
        before = {name: figures for name, figures in before.items() if name in found}
    lines, worse = expectations.compare(before, found)
    print("\n".join(lines) or f"as expected: {len(found)} programs", flush=True)
    return int(worse)


def _refused(error: NotComparable) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
