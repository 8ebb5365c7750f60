"""Cost of one run of a compiled program on a device: HBM traffic, bytes sent between chips, cycles.

The compiler's own `bytes accessed` is not the HBM traffic on TPU: data copied into VMEM is counted on the way in and
again on each use, and of two branches the more expensive counts. So traffic is counted here, over the instructions that
run: an array counts if its layout is in HBM, a gather or slice by the bytes it takes, an in-place update by the bytes
it writes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from apps.plan.hlo import HBM, Array, Computation, Instruction, Module

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
KERNEL = "tpu_custom_call"
"""Name of a Pallas kernel in the text. Its traffic depends on the values of its inputs, not their shapes."""
WHOLE = "delta_rule_one_token"
"""The kernel whose traffic does not: it reads and writes a memory of each sequence."""
EXPERTS = "/experts/while"
"""In the name of a loop over experts; see `apps.llm.engine.model.experts`."""
IMAGES = "/images/while"
"""In that of a loop over images in prompts, which are not planned; see `apps.llm.engine.attention.spans`."""

_FREE = {
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "opt-barrier", "after-all"),
    *("partition-id", "replica-id", "iota"),
}
_SLICES = {"slice", "dynamic-slice", "gather"}
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""In-place updates -> the operand that holds the written data."""
_SAME_DATA = {"bitcast", "reshape", "copy", "transpose", "convert"}


@dataclass(frozen=True)
class Collective:
    """One exchange between devices."""

    kind: str
    group: int
    """Number of devices that take part."""
    payload: int
    """Bytes of its result on each device; of its input, for a reduce-scatter."""

    @property
    def sent(self) -> float:
        """Least bytes that each device sends: the count of the ring algorithms, which is optimal for all-reduce."""
        share = (self.group - 1) / self.group
        return {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share) * self.payload


@dataclass
class Traffic:
    """Totals on one device. Adds and extrapolates like a vector."""

    hbm_read: float = 0
    hbm_written: float = 0
    cycles: float = 0
    """The compiler's cycle estimates of the fusions. Copies from HBM, collectives and kernels have none."""
    ici_sent: float = 0
    kernels: float = 0
    """Number of Pallas calls, whose traffic is not included."""
    collectives: dict[Collective, float] = field(default_factory=dict)

    @property
    def hbm(self) -> float:
        return self.hbm_read + self.hbm_written


UNKNOWN_CYCLES = 2**62
"""The compiler's estimate, or more, of what it cannot estimate, such as a sort of 200,000 columns."""


def count(module: Module, branch: int = 0, blocks: float = 1) -> Traffic:
    """Counts one run of the program that takes branch number `branch` at each conditional.

    Args:
        blocks: turns of each loop over experts, which depend on what the step's tokens pick.

    A step's conditionals skip what no request asks for (penalties, sampling, log probabilities): branch 0 is a batch
    of greedy requests, branch 1 one that uses all of them.
    """
    total = Traffic()
    for computation, instruction, times in _running(module, module.entry, branch, blocks, 1):
        cycles = instruction.number("estimated_cycles") or 0
        total.cycles += times * cycles if cycles < UNKNOWN_CYCLES else 0
        read, written = _moved(module, computation, instruction)
        total.hbm_read += times * read
        total.hbm_written += times * written
        total.kernels += times * (f'"{KERNEL}"' in instruction.line)
        for collective in _collectives(module, instruction):
            total.collectives[collective] = total.collectives.get(collective, 0) + times
            total.ici_sent += times * collective.sent
    return total


def _running(
    module: Module, computation: Computation, branch: int, blocks: float, times: float
) -> Iterator[tuple[Computation, Instruction, float]]:
    """(instruction, count) for all that runs; other loops with an unknown trip count run once."""
    for instruction in computation.instructions:
        if instruction.opcode == "conditional":
            branches = instruction.called("branch_computations")
            branches = branches or instruction.called("false_computation", "true_computation")
            chosen = branches[min(branch, len(branches) - 1)]
            yield from _running(module, module.computations[chosen], branch, blocks, times)
        elif instruction.opcode == "while":
            unknown = blocks if EXPERTS in instruction.line else 0 if IMAGES in instruction.line else 1
            trips = instruction.number("known_trip_count") or unknown
            for name in instruction.called("body"):
                yield from _running(module, module.computations[name], branch, blocks, times * trips)
        elif instruction.opcode in ("call", "call-start"):  # the latter on SparseCores, as 7x runs its collectives
            for name in instruction.called("to_apply", "calls"):
                yield from _running(module, module.computations[name], branch, blocks, times)
        else:
            yield computation, instruction, times


def _moved(module: Module, computation: Computation, instruction: Instruction) -> tuple[int, int]:
    """Bytes that an instruction reads from HBM and writes to it."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or 'custom_call_target="ConcatBitcast"' in instruction.line:
        return 0, 0
    if f'"{KERNEL}"' in instruction.line:
        if WHOLE not in instruction.line.partition(" = ")[0]:
            return 0, 0
        # What XLA has brought into the chip's own memory before, and takes back after, is counted there.
        read = sum(array.nbytes for _, _, array in computation.operand_arrays(instruction) if array.space == HBM)
        return read, sum(array.nbytes for array in instruction.arrays if array.space == HBM)
    if opcode.endswith("-start") and opcode.removesuffix("-start") not in COLLECTIVES:
        return _copied(opcode, instruction)
    if opcode == "fusion":
        fused = module.computations[instruction.called("calls")[0]]
        read = sum(
            array.nbytes if whole is None else whole
            for place, _, array in computation.operand_arrays(instruction)
            if array.space == HBM
            for whole in [_taken(module, fused, place)]
        )
        return read, _made(instruction.arrays, fused)
    operands = [(place, array) for place, _, array in computation.operand_arrays(instruction) if array.space == HBM]
    made = sum(array.nbytes for array in instruction.arrays if array.space == HBM)
    if opcode in _SLICES:
        small = sum(array.nbytes for place, array in operands if place > 0)
        return small + (sum(a.nbytes for a in instruction.arrays) if any(p == 0 for p, _ in operands) else 0), made
    if opcode in _UPDATES:
        written = computation.by_name[instruction.operands[_UPDATES[opcode]]].arrays[0].nbytes
        return sum(array.nbytes for place, array in operands if place > 0), written if made else 0
    if opcode.endswith("-start"):  # a collective's result is (inputs, outputs, ...)
        made //= 2
    return sum(array.nbytes for _, array in operands), made


def _copied(opcode: str, instruction: Instruction) -> tuple[int, int]:
    """An asynchronous copy or slice: its result is (destination, source, ...) or ((sources), destination, ...)."""
    first, second = instruction.arrays[:2]
    source, target = (first, second) if opcode == "slice-start" else (second, first)
    size = target.nbytes
    return (size if source.space == HBM else 0), (size if target.space == HBM else 0)


def _taken(module: Module, fused: Computation, place: int) -> int | None:
    """Bytes of the operand that a fusion reads; None means all."""
    parameter = fused.parameters.get(place)
    return _taken_of(module, fused, parameter) if parameter is not None else None


def _taken_of(module: Module, fused: Computation, value: Instruction) -> int | None:
    if value.root:
        return None
    total = 0
    for user in fused.users.get(value.name, []):
        first = user.operands[0] == value.name and user.operands.count(value.name) == 1
        if user.opcode in _SLICES and first:
            part: int | None = sum(array.nbytes for array in user.arrays)
        elif user.opcode in _UPDATES and first:
            part = 0
        elif user.opcode in ("bitcast", "reshape") or "output_to_operand_aliasing" in user.line:
            # Within a fusion, an output that is its operand is only another view of it (an int8 weight's tiles).
            part = _taken_of(module, fused, user)
        elif user.opcode == "fusion":
            inner = module.computations[user.called("calls")[0]]
            parts = [_taken(module, inner, i) for i, name in enumerate(user.operands) if name == value.name]
            part = None if None in parts else sum(p for p in parts if p is not None)
        else:
            part = None
        if part is None:
            return None
        total += part
    return total


def _made(made: tuple[Array, ...], fused: Computation) -> int:
    """Bytes that a fusion writes; an in-place update counts only what it updates."""
    root = fused.root
    leaves = [fused.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(leaves) != len(made):
        return sum(array.nbytes for array in made if array.space == HBM)
    return sum(_written(fused, leaf, array) for leaf, array in zip(leaves, made) if array.space == HBM)


def _written(fused: Computation, leaf: Instruction, array: Array) -> int:
    while leaf.opcode in _SAME_DATA and leaf.operands and leaf.operands[0] in fused.by_name:
        leaf = fused.by_name[leaf.operands[0]]
    if leaf.opcode in _UPDATES:
        return fused.by_name[leaf.operands[_UPDATES[leaf.opcode]]].arrays[0].nbytes
    return array.nbytes


def _collectives(module: Module, instruction: Instruction) -> Iterator[Collective]:
    if instruction.opcode == "fusion":
        for name in instruction.called("calls"):
            for inner in module.computations[name].instructions:
                yield from _collectives(module, inner)
        return
    kind = instruction.opcode.removesuffix("-start")
    if kind not in COLLECTIVES or instruction.opcode.endswith("-done"):
        return
    made = list(instruction.arrays)
    if instruction.opcode.endswith("-start") and kind != "all-reduce":  # (inputs, outputs, contexts)
        made = made[1:2]
    group = group_size(instruction)
    payload = sum(array.nbytes for array in made) * (group if kind == "reduce-scatter" else 1)
    yield Collective(kind, group, payload)


def group_size(instruction: Instruction) -> int:
    """Number of devices in each group of a collective, for all syntaxes of `replica_groups`."""
    if instruction.opcode.startswith("collective-permute"):
        return 2
    text = instruction.attribute("replica_groups") or ""
    if found := re.match(r"\[(\d+),(\d+)\]<=", text):  # [groups,size]<=[devices]
        return int(found.group(2))
    if text.startswith("mesh["):  # mesh['a'=2,'b'=4] {'b'}
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", text))
        size = 1
        for axis in re.findall(r"'(\w+)'", text[text.index("]") :]):
            size *= int(sizes[axis])
        return size
    if found := re.match(r"\{\{([\d,]+)\}", text):  # {{0,1},{2,3}}
        return len(found.group(1).split(","))
    return 1
