"""What callers write begins no line of a log. The oracle is a log reader: a line that begins with a level is one."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.arrays.model_folder import ModelFolder
from apps.serving.logs.one_line import OneLine, escaped

FORGED = "\nERROR 2026-01-01 00:00:00 podslice all keys were stolen"
SEPARATORS = ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    log = logging.getLogger("podslice")
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


def records(text: str) -> list[str]:
    """As a log reader splits it: Python's own idea of what ends a line is the widest."""
    return [line for line in text.splitlines() if line.startswith(("INFO", "WARNING", "ERROR", "DEBUG"))]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_name_with_line_ends_is_one_record(separator: str, written: io.StringIO) -> None:
    log = logging.getLogger("podslice")
    name = f"sql{separator}ERROR forged"
    log.warning("adapter %s was made for %s", name, {"base": name})
    log.warning(f"adapter {name}")
    try:
        raise ValueError(f"no adapter {name}")
    except ValueError:
        log.exception("adapter %s", name)
    log.warning("next")
    assert len(records(written.getvalue())) == 4
    assert "\x1b" not in written.getvalue()


def test_a_traceback_keeps_its_lines_and_a_terminal_its_state(written: io.StringIO) -> None:
    try:
        raise ValueError("\x1b[2J\x9b1A\u202egnp" + FORGED)
    except ValueError:
        logging.getLogger("podslice").exception("failed")
    text = written.getvalue()
    assert "Traceback" in text and 'File "' in text
    assert all(line.startswith(("ERROR podslice failed", "Traceback", "    ")) for line in text.splitlines())
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


def test_ordinary_texts_are_as_they_were(written: io.StringIO) -> None:
    said = "model ä/模型 a\tb 100 % \\n is \N{GRINNING FACE}"
    logging.getLogger("podslice").warning("%s", said)
    assert written.getvalue() == f"WARNING podslice {said}\n"
    assert escaped(said) == said
    assert escaped("a\nb\x1b\ud800") == r"a\nb\x1b\ud800"


def test_arguments_that_do_not_fit_are_the_handlers_to_report() -> None:
    record = logging.LogRecord("podslice", logging.INFO, "", 0, "%d", ("x",), None)
    assert OneLine().filter(record)


def test_an_adapters_config_forges_nothing(tmp_path: Path, written: io.StringIO) -> None:
    """Through the reader of adapters: the base model's name in its config is logged."""
    from apps.llm.engine.adapters import peft

    (tmp_path / peft.CONFIG).write_text(json.dumps({"base_model_name_or_path": "x" + FORGED}))
    config = ModelFolder(str(tmp_path)).read_json(peft.CONFIG)
    peft.log.warning("adapter %s was made for %s", tmp_path, config["base_model_name_or_path"])
    assert len(records(written.getvalue())) == 1
