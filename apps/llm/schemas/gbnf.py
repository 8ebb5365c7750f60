"""Grammars in GBNF (`root ::= "a" | [b-d]+`), which llama.cpp, xgrammar and so vLLM take, as Lark.

llguidance's converter makes one lexeme of whatever needs no recursion, and a lexeme takes all that it can: after
`[ \\n]*` nothing would be left for a line end. Here each character is a lexeme, so an answer may be exactly what the
grammar says. Only the converter's parser is used.
"""

import json
import re
from typing import Any

from llguidance import gbnf_to_lark as gbnf

RULE = re.compile(r"^[ \t]*[-\w]+[ \t]*::=", re.MULTILINE)
START = "root"
MOST_CHARACTERS = 20_000
"""Parsing one takes 5 microseconds."""
CHARACTERS = re.compile(r"\\x(?P<x>[0-9a-fA-F]{2})|\\[uU](?P<u>[0-9a-fA-F]*)|\\(?P<one>.)|(?P<plain>.)", re.DOTALL)
CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
REPEATS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def is_gbnf(text: str) -> bool:
    """Whether a grammar is written so, and not in Lark."""
    return RULE.search(text) is not None


def lark_of(text: str) -> str:
    """The grammar in llguidance's dialect of Lark, whose first rule is `start`. Raises ValueError."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; the most are {MOST_CHARACTERS}")
    try:
        rules = gbnf.GrammarParser().parse(text)
        if START not in rules:
            raise ValueError(f"has no rule {START}")
        names = {name: f"rule_{i}" for i, name in enumerate(rules)} | {START: "start"}
        return "\n".join(f"{names[name]}: {_written(rule.alternatives, names)}" for name, rule in rules.items())
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError:
        raise
    except Exception as error:  # the parser's own, and an IndexError at the text's end
        raise ValueError(f"is not a grammar in GBNF: {error}") from None


def _written(node: Any, names: dict[str, str]) -> str:
    match node:
        case gbnf.AlternativeNode(alternatives):
            return "(" + " | ".join(_written(each, names) for each in alternatives) + ")"
        case gbnf.SequenceNode(nodes):
            return " ".join(_written(each, names) for each in nodes) or '""'
        case gbnf.RepetitionNode(repeated, least, most):
            how = REPEATS.get((least, most), f"{{{least},{'' if most is None else most}}}")
            return f"({_written(repeated, names)}){how}"
        case gbnf.RuleRefNode(name):
            if name not in names:
                raise ValueError(f"has no rule {name}")
            return names[name]
        case gbnf.LiteralNode(value):
            return " ".join(json.dumps(_character(found)) for found in CHARACTERS.finditer(value)) or '""'
        case gbnf.RegexNode("."):
            return "/(?s:.)/"
        case gbnf.RegexNode(regex):
            return "/" + re.sub(r"\\[uU]([0-9a-fA-F]+)", r"\\x{\1}", regex) + "/"
    raise ValueError(f"has something that is not known: {node}")


def _character(found: re.Match[str]) -> str:
    if code := found["x"] or found["u"]:
        return chr(int(code, 16))
    return CONTROLS.get(found["one"] or "", found["one"] or found["plain"])
