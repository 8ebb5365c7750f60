"""Chat templates with a bound on their work: a checkpoint's template is a program that nobody here wrote.

transformers renders them in Jinja's sandbox, which keeps a template from the machine but not from looping for ever, and
rendering cannot be stopped from outside. So every turn of a loop, call, filter and piece of output takes steps of a
budget; what could make a huge value at once is refused before it does.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS = 1_000_000
"""Of one rendering: about a second."""
CHARACTERS_A_STEP, MEMBERS_A_STEP = 64, 64
"""Of what is written or joined, and of the lists that filters go through."""
AT_ONCE = frozenset({"length", "count", "first", "last"})
"""Filters that do not go through a list."""
LONGEST_SOURCE = 2**20
LARGEST_NUMBER = 10**6
"""As an argument: a width, a count."""
LONGEST_LIST = 10**5
"""That an operator may make; jinja2's own limit for `range`."""

_left = threading.local()


class TooMuchWork(TemplateRuntimeError):
    """The template takes too many steps, or makes too large a value."""


@contextmanager
def steps(most: int = STEPS) -> Iterator[None]:
    """Renderings of this thread in the block may take so many steps together."""
    _left.steps = most
    try:
        yield
    finally:
        _left.steps = None


def _spend(count: int) -> None:
    left = getattr(_left, "steps", None)
    if left is not None:
        _left.steps = left - count
        if left < count:
            raise TooMuchWork(f"the template takes more than {STEPS} steps")


@cache
def bound_templates() -> None:
    """From now on, the templates that transformers renders in this process are bounded."""
    from transformers.utils import chat_template_utils

    compiled = chat_template_utils._compile_jinja_template

    @cache
    def bounded(source: str) -> Any:
        if len(source) > LONGEST_SOURCE:
            raise TooMuchWork(f"the template has {len(source)} characters; the most are {LONGEST_SOURCE}")
        environment = compiled("").environment.overlay()
        environment.__class__ = _Bounded
        environment.intercepted_binops = frozenset({"+", "*", "**", "%"})
        environment.finalize = _written
        environment.filters = {name: _stepped(name, filter_) for name, filter_ in environment.filters.items()}
        environment.filters |= {_CONCAT: _written, _TURN: _taken}
        environment.globals = {name: value for name, value in environment.globals.items() if name != "lipsum"}
        return environment.from_string(source)

    chat_template_utils._compile_jinja_template = bounded


class _Bounded(ImmutableSandboxedEnvironment):
    def _generate(self, source: nodes.Template, *arguments: Any, **named: Any) -> str:
        return super()._generate(_CountLoops().visit(source), *arguments, **named)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _spend(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes | int):  # its width is one of these; elsewhere they are values to write
            _check_arguments(owner, *args, *kwargs.values())
        return _written(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        _check_arguments(getattr(value, "__self__", None))
        return super().wrap_str_format(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _check_product(operator, left, right)
        elif operator == "%":
            _check_arguments(left if isinstance(left, str) else None, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, list | tuple) and len(result) > LONGEST_LIST:
            raise TooMuchWork(f"the template makes a list of {len(result)} members")
        return _written(result)


class _CountLoops(NodeTransformer):
    """Takes steps at each turn of a loop, each call of a macro and each joining of texts."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        if node.test is not None:  # what it leaves out are turns too
            node.test = nodes.And(_turn(0, node), node.test)
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        return nodes.Filter(self.generic_visit(node), _CONCAT, [], [], None, None, lineno=node.lineno)

    def _counted(self, node: Any) -> Any:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node = self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_turn(written, node), lineno=node.lineno))
        return node


_CONCAT, _TURN = "joined by ~", "one turn"  # no template can name them


def _turn(characters: int, node: nodes.Node) -> nodes.Filter:
    """An expression that takes the steps of one turn, and is true."""
    steps_ = nodes.Const(1 + characters // CHARACTERS_A_STEP)
    return nodes.Filter(steps_, _TURN, [], [], None, None, lineno=node.lineno)


@pass_context  # otherwise jinja2 works it out while it compiles
def _taken(_: Context, count: int) -> bool:
    _spend(count)
    return True


def _written(value: Any) -> Any:
    if isinstance(value, str):
        _spend(1 + len(value) // CHARACTERS_A_STEP)
    return value


def _stepped(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, taking steps for what it is given and what it makes."""

    @wraps(filter_)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        sized = () if name in AT_ONCE else next((arg for arg in args if isinstance(arg, list | tuple | dict)), ())
        _spend(1 + len(sized) // MEMBERS_A_STEP)
        options = args[2 if hasattr(filter_, "jinja_pass_arg") else 1 :]  # after the context and the value
        _check_arguments(args[0] if name == "format" else None, *options, *kwargs.values())
        return _written(filter_(*args, **kwargs))

    return stepped


def _check_arguments(text: Any, *arguments: Any) -> None:
    """Raises TooMuchWork for widths and counts that no template needs. `text`: may be a format with widths in it."""
    if any(isinstance(each, int) and abs(each) > LARGEST_NUMBER for each in arguments):
        raise TooMuchWork(f"the template gives a number above {LARGEST_NUMBER}")
    if isinstance(text, str) and ("%" in text or "{" in text) and re.search(r"[%{][^%{}]*\d{7,}", text[:10_000]):
        raise TooMuchWork("the template formats to a huge width")


def _check_product(operator: str, left: Any, right: Any) -> None:
    sizes = [len(side) if hasattr(side, "__len__") else None for side in (left, right)]
    if operator == "*" and sizes != [None, None]:
        times = next((side for side in (left, right) if isinstance(side, int)), 0)
        if times * max(size or 0 for size in sizes) > LARGEST_NUMBER:
            raise TooMuchWork("the template makes a huge text or list")
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > LARGEST_NUMBER // 100:
            raise TooMuchWork("the template makes a huge number")
