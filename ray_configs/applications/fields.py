"""The fields of a config with their docstrings, for people who ask a command."""

import ast
import inspect
import textwrap

from pydantic import BaseModel

WIDTH = 100


def docstrings(config: type[BaseModel]) -> dict[str, str]:
    """The text under each field; that of the model first."""
    found: dict[str, str] = {}
    for kind in config.__mro__:
        if kind is BaseModel:
            break
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:]):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    if name in config.model_fields:
                        found.setdefault(name, inspect.cleandoc(text))
    return {name: found[name] for name in sorted(found, key="model".__ne__)}


def listing(config: type[BaseModel]) -> str:
    """Each field with its default and the first paragraph about it."""
    lines = [f"Fields of {config.__name__}, written FIELD=VALUE; docs/configs.md has all about them.\n"]
    for name, about in docstrings(config).items():
        field = config.model_fields[name]
        default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
        lines.append(f"{name}  [{default}]")
        first = " ".join(about.split("\n\n")[0].split())
        lines += textwrap.wrap(first, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"
