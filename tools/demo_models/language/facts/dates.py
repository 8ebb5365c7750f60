"""Facts of the calendar: days, months and seasons, and their order."""

from __future__ import annotations

from tools.demo_models.language.facts.phrasing import listed
from tools.demo_models.language.facts.relations import Relation

DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
MONTH_DAYS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
SEASONS = listed("spring summer autumn winter")
ORDINALS = listed("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")


def _next(names: list[str], step: int) -> tuple[dict[str, str], ...]:
    return tuple({"item": name, "value": names[(i + step) % len(names)]} for i, name in enumerate(names))


_WHAT_FOLLOWS = (
    "(what|which) {kind} (comes|is|follows) (right|directly|) after {item}",
    "(what|which) (is the|) {kind} (after|following) {item}",
    "(what|which) {kind} follows {item}",
    "what (comes|is) (just|right|) after {item}",
    "after {item} comes (what|which|the) {kind}",
    "(tell me|name|say|give me) the {kind} (that comes|) after {item}",
    "{item} is followed by (what|which) {kind}",
    "what is the next {kind} after {item}",
    "if it is {item} now, what is the next {kind}",
    "which {kind} do we have after {item}",
)
_WHAT_PRECEDES = (
    "(what|which) {kind} (comes|is) (right|directly|) before {item}",
    "(what|which) (is the|) {kind} before {item}",
    "(what|which) {kind} precedes {item}",
    "what (comes|is) (just|right|) before {item}",
    "before {item} comes (what|which) {kind}",
    "(tell me|name|say|give me) the {kind} (that comes|) before {item}",
    "{item} is preceded by (what|which) {kind}",
    "what is the previous {kind} before {item}",
    "which {kind} do we have before {item}",
)


def _kind(templates: tuple[str, ...], kind: str) -> tuple[str, ...]:
    return tuple(one.replace("{kind}", kind) for one in templates)


CALENDAR = (
    Relation(
        "day after", "calendar",
        (
            *_kind(_WHAT_FOLLOWS, "day"),
            "(today is|it is) {item}, (what|which day) is tomorrow",
            "if today is {item}, (what|which) day (is|will be) tomorrow",
            "what day of the week (comes|is) after {item}",
        ),
        (
            "{item} comes first, and then which day",
            "once {item} is over, what day is it",
            "today is {item}, so what will tomorrow be",
            "the day that follows {item} is",
        ),
        "{value} comes after {item}.", _next(DAYS, 1),
        noun=(
            "the day after {item}|the day following {item}|the next day after {item}|"
            "the day right after {item}"
        ),
    ),
    Relation(
        "day before", "calendar",
        (
            *_kind(_WHAT_PRECEDES, "day"),
            "(today is|it is) {item}, (what|which day) was yesterday",
            "if today is {item}, (what|which) day was (it|) yesterday",
            "what day of the week (comes|is) before {item}",
        ),
        (
            "which day was it just before {item}",
            "today is {item}, so what was yesterday",
            "the day that precedes {item} is",
        ),
        "{value} comes before {item}.", _next(DAYS, -1),
        noun=(
            "the day before {item}|the day preceding {item}|the previous day before {item}|"
            "the day right before {item}"
        ),
    ),
    Relation(
        "month after", "calendar",
        (*_kind(_WHAT_FOLLOWS, "month"), "which month of the year (comes|is) after {item}"),
        (
            "{item} comes first, and then which month",
            "once {item} is over, what month is it",
            "the month that follows {item} is",
        ),
        "{value} comes after {item}.", _next(MONTHS, 1),
        noun=(
            "the month after {item}|the month following {item}|the next month after {item}|"
            "the month right after {item}"
        ),
    ),
    Relation(
        "month before", "calendar",
        (*_kind(_WHAT_PRECEDES, "month"), "which month of the year (comes|is) before {item}"),
        ("which month was it just before {item}", "the month that precedes {item} is"),
        "{value} comes before {item}.", _next(MONTHS, -1),
        noun=(
            "the month before {item}|the month preceding {item}|the month right before {item}"
        ),
    ),
    Relation(
        "season after", "calendar", _kind(_WHAT_FOLLOWS, "season"),
        ("once {item} is over, what season is it", "the season that follows {item} is"),
        "{value} comes after {item}.", _next(SEASONS, 1), 0.5,
        noun=(
            "the season after {item}|the season following {item}|the next season after {item}"
        ),
    ),
    Relation(
        "days in month", "calendar",
        (
            "how many days (does|are in|are there in|has) {month} (have|)",
            "how many days are (in|in the month of) {month}",
            "(what is|tell me) the number of days in {month}",
            "how long is (the month of|) {month} (in days|)",
            "{month} has how many days",
            "in {month} there are how many days",
            "(how many|count of) days (of|in) {month}",
            "what is the length of {month} in days",
        ),
        (
            "the month {month} lasts how many days",
            "what number of days does {month} have",
            "how many days long is {month}",
        ),
        "{month} has {value} days.",
        tuple({"month": month, "value": str(days)} for month, days in MONTH_DAYS.items()), 1.2,
        noun=(
            "the number of days in {month}|the length of {month}|"
            "the length of {month} in days|how many days {month} has|"
            "how many days there are in {month}"
        ),
    ),
    Relation(
        "nth month", "calendar",
        (
            "(what|which) (is the|month is the|month is) {nth} month (of the year|in a year|)",
            "(what|which) month (is|comes) {nth} (in the year|of the year|)",
            "(name|tell me|give me|say) the {nth} month (of the year|)",
            "the {nth} month of the year is (what|which|called what)",
            "what is the name of the {nth} month",
            "which month of the year is (number|) {number}",
            "what is month (number|) {number} (of the year|)",
        ),
        (
            "in a year, which month is the {nth} one",
            "how is the {nth} month called",
            "month number {number} has which name",
        ),
        "The {nth} month is {value}.",
        tuple(
            {"nth": nth, "number": str(i + 1), "value": MONTHS[i]}
            for i, nth in enumerate(ORDINALS)
        ),
        noun=(
            "the {nth} month|the {nth} month of the year|month number {number}|"
            "the name of the {nth} month|the month that comes {nth}"
        ),
    ),
    Relation(
        "nth day", "calendar",
        (
            "(what|which) (is the|day is the) {nth} day of (the|a) week",
            "(what|which) day (is|comes) {nth} in (the|a) week",
            "(name|tell me|give me|say) the {nth} day of the week",
            "the {nth} day of the week is (what|which|called what)",
            "what is the name of the {nth} day (of|in) the week",
            "which day of the week is number {number}",
        ),
        ("in a week, which day is the {nth} one", "how is the {nth} day of the week called"),
        "The {nth} day of the week is {value}.",
        tuple(
            {"nth": nth, "number": str(i + 1), "value": day}
            for i, (nth, day) in enumerate(zip(ORDINALS, DAYS, strict=False))
        ),
        noun=(
            "the {nth} day of the week|the {nth} day in a week|"
            "the name of the {nth} day of the week|the day that comes {nth} in a week"
        ),
    ),
)  # fmt: skip
