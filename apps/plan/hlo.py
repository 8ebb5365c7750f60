"""Parses the text of a compiled HLO module: computations, instructions and the shapes of their results.

Only as far as counting bytes, cycles and collectives requires. The text is that of `jax.stages.Compiled.as_text()`; its
grammar is XLA's (xla/hlo/parser/hlo_parser.cc), with layouts as in xla/layout.h.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

HBM = 0
"""Memory space of HBM, the default of a layout; S(1) is VMEM, on the chip."""

BITS = {"pred": 8, "token": 0, "opaque": 0}
"""Widths of types whose name does not end in their width."""

_TYPE = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAMED = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True)
class Array:
    """One array's type and layout."""

    dtype: str
    dims: tuple[int, ...]
    space: int = HBM
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory, with the minor axes padded to whole tiles."""
        dims = list(self.dims)
        order = self.minor_to_major or tuple(reversed(range(len(dims))))
        for axis, width in zip(order, reversed(self.tile)):
            dims[axis] = -(-dims[axis] // width) * width
        bits = _bits(self.dtype)
        for size in dims:
            bits *= size
        return bits // 8


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    arrays: tuple[Array, ...]
    """Its results; of a tuple, the leaves in order."""
    operands: tuple[str, ...]
    line: str
    root: bool

    def attribute(self, name: str) -> str | None:
        """Text of `name=...` up to the next comma that is outside brackets."""
        start = self.line.find(f", {name}=")
        if start < 0:
            return None
        return _balanced(self.line, start + len(name) + 3)

    def called(self, *names: str) -> list[str]:
        """The computations that the instruction names in these attributes."""
        found = (self.attribute(name) for name in names)
        return [name for text in found if text is not None for name in _OPERAND.findall(text)]

    def number(self, key: str) -> int | None:
        """The number in `"key":"123"`, the format of backend_config."""
        found = re.search(rf'"{key}":\{{?"?(?:n":")?(\d+)', self.line)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The computation's parameters by number."""
        return {
            int(instruction.line.partition(" parameter(")[2].partition(")")[0]): instruction
            for instruction in self.instructions
            if instruction.opcode == "parameter"
        }

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    @property
    def root(self) -> Instruction:
        return next((i for i in self.instructions if i.root), self.instructions[-1])

    def operand_arrays(self, instruction: Instruction) -> Iterator[tuple[int, str, Array]]:
        """(operand index, operand name, array) for each array of each operand."""
        for place, name in enumerate(instruction.operands):
            if name in self.by_name:
                for array in self.by_name[name].arrays:
                    yield place, name, array


@dataclass(frozen=True)
class Module:
    computations: dict[str, Computation]
    entry: Computation


def parse(text: str) -> Module:
    """Parses the text of a compiled program.

    Raises:
        ValueError: the text has no ENTRY computation.
    """
    computations: dict[str, Computation] = {}
    lines: list[Instruction] = []
    entry, name = None, ""
    for line in text.splitlines():
        if not name:
            if head := _HEAD.match(line):
                name, lines = head.group(1), []
                entry = name if line.startswith("ENTRY ") else entry
        elif line.startswith("}"):
            computations[name], name = Computation(name, tuple(lines)), ""
        elif (instruction := _instruction(line)) is not None:
            lines.append(instruction)
    if entry is None:
        raise ValueError("this text has no ENTRY computation: it is not a compiled HLO module")
    return Module(computations, computations[entry])


def arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a shape: `f32[2,3]{1,0:T(8,128)S(1)}`, or a tuple of such."""
    return tuple(_array(*found.groups()) for found in _TYPE.finditer(text))


def _instruction(line: str) -> Instruction | None:
    named = _NAMED.match(line)
    if named is None:
        return None
    rest = line[named.end() :]
    shape = _balanced(rest, 0) if rest.startswith("(") else rest[: _shape_end(rest)]
    opcode = _OPCODE.match(rest, len(shape))
    if opcode is None:
        return None
    operands = _balanced(rest, opcode.end() - 1)
    return Instruction(
        name=named.group(2),
        opcode=opcode.group(1),
        arrays=arrays(shape),
        operands=tuple(_OPERAND.findall(operands)),
        line=line,
        root=bool(named.group(1)),
    )


def _shape_end(text: str) -> int:
    found = _TYPE.match(text)
    return found.end() if found else text.index(" ")


def _balanced(text: str, start: int) -> str:
    """From `start` to the comma or space that ends it outside brackets; a bracket at the start ends it too."""
    depth, i = 0, start
    while i < len(text):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth < 0:
                break
            if depth == 0 and text[start] == "(":
                return text[start : i + 1]
        elif text[i] == "," and depth == 0:
            break
        i += 1
    return text[start:i]


def _array(dtype: str, dims: str, layout: str | None) -> Array:
    sizes = tuple(int(size.removeprefix("<=")) for size in dims.split(",") if size)
    order, _, rest = (layout or "").partition(":")
    space = re.search(r"S\((\d+)\)", rest)
    tile = re.match(r"T\(([\d,]+)\)", rest)
    return Array(
        dtype,
        sizes,
        int(space.group(1)) if space else HBM,
        tuple(int(axis) for axis in order.split(",") if axis),
        tuple(int(width) for width in tile.group(1).split(",")) if tile else (),
    )


def _bits(dtype: str) -> int:
    if dtype in BITS:
        return BITS[dtype]
    width = re.match(r"[a-z]+(\d+)", dtype)  # bf16, s32, f8e4m3fn, u4
    return int(width.group(1)) if width else 0
