"""Numbers: sums, differences, products, comparisons, counting on and back.

Every sum of two numbers up to 10, and every difference that takes at most 10 from at most 20, is trained on:
a model this small memorizes them and cannot add others (`BEYOND`; the evaluation reports those separately).
"""

from __future__ import annotations

from tools.demo_models.language.facts.relations import SMALL, Relation, Row

LARGEST = 10


def spoken(number: str) -> str:
    """The word of a small number, `7` -> `seven`; larger numbers stay in digits."""
    return SMALL[int(number)] if int(number) < len(SMALL) else number


def _rows(numbers: list[tuple[int, int, int]]) -> tuple[Row, ...]:
    return tuple(
        {
            "x": str(x), "y": str(y), "value": str(value),
            "xw": spoken(str(x)), "yw": spoken(str(y)),
        }
        for x, y, value in numbers
    )  # fmt: skip


SUMS = _rows([(x, y, x + y) for x in range(LARGEST + 1) for y in range(LARGEST + 1)])
BEYOND = _rows([(x, y, x + y) for x in range(11, 19) for y in (4, 7, 13)])
DIFFERENCES = _rows([(x, y, x - y) for x in range(2 * LARGEST + 1) for y in range(min(x, LARGEST) + 1)])
PRODUCTS = _rows([(x, y, x * y) for x in range(7) for y in range(7)])
COMPARED = _rows([(x, y, max(x, y)) for x in range(21) for y in range(21) if x != y])
LESSER = _rows([(x, y, min(x, y)) for x in range(21) for y in range(21) if x != y])
NEIGHBOURS = _rows([(x, 0, x + 1) for x in range(100)])
PREVIOUS = _rows([(x, 0, x - 1) for x in range(1, 101)])

ARITHMETIC = (
    Relation(
        "sum", "arithmetic",
        (
            "(what is|how much is|calculate|compute|what's|) ({x} + {y}|{x}+{y}|{x} plus {y})",
            "(what is|how much is|calculate|compute|) {xw} (plus|and) {yw}",
            "(what is|tell me|give me) the sum of ({x} and {y}|{xw} and {yw})",
            "add {x} (and|to|with) {y}",
            "(what do you get|what is it) (if|when) you add {x} (and|to) {y}",
            "{x} plus {y} (is|equals|makes) (what|how much|)",
            "{x} + {y} =",
            "{x}+{y}=",
            "I have {x} apples and (get|buy|find) {y} more, how many (apples|) (do I have|are there)",
            "there are {x} birds and {y} more come, how many birds are there (now|)",
        ),
        (
            "what does {x} plus {y} come to",
            "if I put {x} and {y} together, how much is it",
            "the sum of {x} and {y} equals",
            "work out {x} + {y} for me",
        ),
        "{x} plus {y} is {value}.", SUMS, 2.6,
        noun=(
            "{x} + {y}|{x} plus {y}|the sum of {x} and {y}|{x} and {y} added|"
            "{x} and {y} in all|{x} and {y} together|the result of {x} + {y}|"
            "the answer to {x} plus {y}|the total of {x} and {y}"
        ),
    ),
    Relation(
        "difference", "arithmetic",
        (
            "(what is|how much is|calculate|compute|what's|) ({x} - {y}|{x}-{y}|{x} minus {y})",
            "(what is|how much is|calculate|compute|) {xw} minus {yw}",
            "(what is|tell me|give me) the difference (of|between) {x} and {y}",
            "(subtract|take) {y} from {x}",
            "(what do you get|what is it) (if|when) you (subtract|take) {y} from {x}",
            "{x} minus {y} (is|equals|makes) (what|how much|)",
            "{x} - {y} =",
            "{x}-{y}=",
            "I have {x} apples and (eat|lose|give away) {y}, how many (apples|) (are left|do I have)",
            "there are {x} birds and {y} fly away, how many birds are (left|there now)",
        ),
        (
            "what does {x} minus {y} come to",
            "if {y} is taken from {x}, what is left",
            "work out {x} - {y} for me",
        ),
        "{x} minus {y} is {value}.", DIFFERENCES, 2.6,
        noun=(
            "{x} - {y}|{x} minus {y}|the difference of {x} and {y}|{x} less {y}|"
            "the result of {x} - {y}|the answer to {x} minus {y}|"
            "what is left of {x} without {y}|what is left if {y} is taken away from {x}"
        ),
    ),
    Relation(
        "product", "arithmetic",
        (
            "(what is|how much is|calculate|compute|) ({x} * {y}|{x} times {y}|{x} x {y})",
            "(what is|how much is|) {xw} times {yw}",
            "(what is|tell me) the product of {x} and {y}",
            "multiply {x} (by|with|and) {y}",
            "{x} times {y} (is|equals|makes) (what|how much|)",
        ),
        ("what does {x} times {y} come to", "work out {x} times {y} for me"),
        "{x} times {y} is {value}.", PRODUCTS, 1.0,
        noun=(
            "{x} times {y}|{x} * {y}|the product of {x} and {y}|the result of {x} times {y}|"
            "the answer to {x} * {y}"
        ),
    ),
    Relation(
        "larger", "comparisons",
        (
            "(which|what) (is|number is) (larger|bigger|greater|more), {x} or {y}",
            "(which|what) (number|) is (larger|bigger|greater): {x} or {y}",
            "(is|are) {x} or {y} (larger|bigger|greater|more)",
            "(tell me|name|give me) the (larger|bigger|greater) (number|one|) of {x} and {y}",
            "what is the maximum of {x} and {y}",
            "of {x} and {y}, which is (larger|bigger|greater)",
            "(which|what) is the (larger|bigger|greater) number, {x} or {y}",
        ),
        (
            "between {x} and {y}, which one is bigger",
            "{x} or {y}: which is more",
        ),
        "{value} is larger.", COMPARED, 1.0,
        noun=(
            "the larger of {x} and {y}|the bigger of {x} and {y}|"
            "the bigger number of {x} or {y}|the larger one, {x} or {y}|"
            "what is more: {x} or {y}"
        ),
    ),
    Relation(
        "smaller", "comparisons",
        (
            "(which|what) (is|number is) (smaller|less|lower), {x} or {y}",
            "(which|what) (number|) is (smaller|less|lower): {x} or {y}",
            "(is|are) {x} or {y} (smaller|less|lower)",
            "(tell me|name|give me) the (smaller|lower) (number|one|) of {x} and {y}",
            "what is the minimum of {x} and {y}",
            "of {x} and {y}, which is (smaller|less|lower)",
            "(which|what) is the (smaller|lower) number, {x} or {y}",
        ),
        (
            "between {x} and {y}, which one is smaller",
            "{x} or {y}: which is less",
        ),
        "{value} is smaller.", LESSER, 1.0,
        noun=(
            "the smaller of {x} and {y}|the lower of {x} and {y}|"
            "the smaller number of {x} or {y}|the smaller one, {x} or {y}|"
            "what is less: {x} or {y}"
        ),
    ),
    Relation(
        "next number", "counting",
        (
            "(what|which) number (comes|is) (right|) after {x}",
            "what (comes|is) after {x}",
            "what is the (next number|number) after {x}",
            "(which|what) number follows {x}",
            "what is one more than {x}",
            "after {x} comes (what|which number)",
        ),
        ("I count to {x}, and then comes which number", "the number that follows {x} is"),
        "{value} comes after {x}.", NEIGHBOURS, 1.4,
        noun=(
            "the number after {x}|the next number after {x}|the number following {x}|"
            "the number right after {x}|what comes after {x} when you count"
        ),
    ),
    Relation(
        "previous number", "counting",
        (
            "(what|which) number (comes|is) (right|) before {x}",
            "what (comes|is) before {x}",
            "what is the (previous number|number) before {x}",
            "(which|what) number precedes {x}",
            "what is one less than {x}",
            "before {x} comes (what|which number)",
        ),
        ("which number is it just before {x}", "the number that precedes {x} is"),
        "{value} comes before {x}.", PREVIOUS, 1.4,
        noun=(
            "the number before {x}|the number preceding {x}|the number right before {x}|"
            "what comes before {x} when you count"
        ),
    ),
)  # fmt: skip
