"""Grammars in GBNF allow exactly what they say.

Oracles: Python's `re` and `json`, and for a grammar without repetition the product of its choices. xgrammar, with which
vLLM reads them, said the same of these texts (but for "escapes": it has no `.`).
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import pytest
from tokenizers import Tokenizer

from apps.llm.chat.grammar import grammar_rule
from apps.llm.schemas.gbnf import is_gbnf, lark_of
from apps.llm.text_api import Pattern
from ray_configs.llm import DEMO_MODEL

QUERY = """
        root ::= query

        query ::= "SELECT " column " FROM " table " WHERE " condition

        column ::= "name " | "age "

        table ::= "people " | "places "

        condition ::= column "= " number

        number ::= "1 " | "2 "
"""
NAMES, TABLES, NUMBERS = ("name ", "age "), ("people ", "places "), ("1 ", "2 ")
QUERIES = [
    f"SELECT {column} FROM {table} WHERE {other}= {number}"
    for column, table, other, number in itertools.product(NAMES, TABLES, NAMES, NUMBERS)
]
SUMS = r"""
root ::= (sum "=" gap term "\n")+ # a line end, which gap may be too
sum  ::= term ([-+*/] term)*
term ::= name | num | "(" gap sum ")" gap
name ::= [a-z] [a-z0-9_]* gap
num  ::= [0-9]+ gap
gap  ::= [ \t\n]*
"""
FLAT_SUMS = r"((([a-z][a-z0-9_]*|[0-9]+)\s*)([-+*/]([a-z][a-z0-9_]*|[0-9]+)\s*)*=\s*([a-z][a-z0-9_]*|[0-9]+)\s*\n)+"
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") gap
object ::= "{" gap ( string ":" gap value ("," gap string ":" gap value)* )? "}" gap
array  ::= "[" gap ( value ("," gap value)* )? "]" gap
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" gap
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? gap
gap    ::= "" | " " | "\n" [ \t]{0,20}
"""
ESCAPES = r'root ::= "\u0041\x42\"\\" [\u0043-\u0045\]/-] "été\n" . "z"{2,3} "a/b"?'


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


Check = Callable[[str], Any]
GRAMMARS: dict[str, tuple[str, Check, Sequence[str]]] = {
    "choices": (QUERY, QUERIES.__contains__, [*QUERIES, QUERIES[0][:-1], QUERIES[0] + "1", "", "SELECT places "]),
    "greedy gaps": (
        SUMS,
        lambda text: re.fullmatch(FLAT_SUMS, text),
        ["x+1= 2\n", "a=b\n\n\n", "a_1*2=3 \t\nc=4\n", "x+1", "=2\n", "a=b", "a=b\n=", "1a=b\n"],
    ),
    "json": (
        JSON,
        is_object,
        [
            '{"a": [1, -2.5e+3, "x\\n\\u00e9", {"b": null}], "": true}',
            *("{}", "{ }", '{"a":1}', '{"日本": "🦊"}', '{"a"}', '{"a": 01}', "[1]", '{"a": tru}', '{"a": "\\x"}'),
        ],
    ),
    "escapes": (
        ESCAPES,
        lambda text: re.fullmatch(r'AB"\\[C-E\]/-]été\n(?s:.)z{2,3}(a/b)?', text),
        [
            *('AB"\\Cété\n\nzz', 'AB"\\]été\nxzzza/b', 'AB"\\-été\n🦊zz'),
            *('AB"\\Fété\nxzz', 'AB"\\/été\nxz', 'B"\\Cété\nxzz'),
        ],
    ),
    "names": (
        'root ::= fooBar foo-baz start\nfooBar ::= "x" | "y"\nfoo-baz ::= "z"?\nstart ::= [^a-c]',
        lambda text: re.fullmatch("[xy]z?[^a-c]", text),
        ["xz1", "yd", "xzz", "x", "xa", "zd"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokens() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(Tokenizer.from_file(f"{DEMO_MODEL}/tokenizer.json").to_str())


def allowed(tokens: llguidance.LLTokenizer, grammar: str, text: str) -> bool:
    """Whether the text is a whole answer."""
    matcher = llguidance.LLMatcher(tokens, Pattern(grammar_rule(grammar), "grammar").grammar.lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokens.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_a_grammar_allows(tokens: llguidance.LLTokenizer, name: str) -> None:
    grammar, check, texts = GRAMMARS[name]
    assert is_gbnf(grammar)
    found = {text: allowed(tokens, grammar, text) for text in texts}
    assert found == {text: bool(check(text)) for text in texts}
    assert {True, False} == set(found.values())


@pytest.mark.parametrize("lark", ['start: "a ::= b"', "start: A\nA: /[a-z] ::=/", '?start: a\n?a: "b"\n', ""])
def test_lark_is_left_as_it_is(lark: str) -> None:
    assert not is_gbnf(lark) and lark in grammar_rule(lark)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('a ::= "b"', "has no rule root"),
        ("root ::= missing", "has no rule missing"),
        ('root ::= "a', "is not a grammar in GBNF: Unexpected end of input"),
        ("root ::= [a", "is not a grammar in GBNF"),
        (r'root ::= "\q"', "Invalid escape sequence"),
        ("root ::= a )", "is not a grammar in GBNF: Expected name"),
        ("root ::= " + "(" * 5000, "is nested too deeply"),
        ("root ::= " + "a" * 20_000, "has 20009 characters; the most are 20000"),
        ('root ::= "a"{' + "9" * 5000 + "}", "digits"),
    ],
)
def test_what_is_wrong_is_said(grammar: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        lark_of(grammar)
