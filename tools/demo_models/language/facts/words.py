"""Facts about words: opposites, plurals and spelling."""

from __future__ import annotations

from tools.demo_models.language.facts.phrasing import listed
from tools.demo_models.language.facts.relations import SMALL, Relation, a, each, pairs

OPPOSITES = pairs(
    "word value",
    "hot cold; big small; up down; left right; open closed; fast slow; light dark; "
    "happy sad; old new; tall short; day night; wet dry; hard soft; full empty; early late; "
    "high low; good bad; strong weak; rich poor; near far; loud quiet; clean dirty; thick thin; "
    "wide narrow; yes no; always never; love hate; in out; front back; first last; "
    "push pull; win lose; start stop; true false; black white; begin end; buy sell; "
    "heavy weightless; easy difficult; inside outside; above below; before after",
)
PLURALS = pairs(
    "word value",
    "dog dogs; cat cats; house houses; car cars; tree trees; book books; apple apples; day days; "
    "box boxes; bus buses; glass glasses; dish dishes; church churches; fox foxes; wish wishes; "
    "baby babies; city cities; story stories; lady ladies; party parties; cherry cherries; "
    "child children; man men; woman women; foot feet; tooth teeth; goose geese; mouse mice; "
    "person people; sheep sheep; fish fish; leaf leaves; knife knives; wolf wolves; wife wives; "
    "half halves; life lives; shelf shelves; tomato tomatoes; potato potatoes; hero heroes; "
    "key keys; boy boys; toy toys; ox oxen; deer deer; loaf loaves; thief thieves",
)
SPELLED = listed(
    "cat dog sun book tree fish bird house water apple green happy table horse mouse sheep river "
    "light night music paper chair bread milk cheese lemon orange garden window door street "
    "school friend family mother winter planet robot python coffee letter yellow snow podslice"
)
_WORDS = tuple(
    {
        "word": word,
        "spelled": "-".join(word),
        "first": word[0],
        "last": word[-1],
        "length": SMALL[len(word)],
    }
    for word in SPELLED
)


def _asking(slot: str) -> tuple[dict[str, str], ...]:
    return each(_WORDS, value=lambda row: row[slot])


_QUOTED = "({word}|the word {word}|'{word}'|the word '{word}')"

WORDS = (
    Relation(
        "opposite", "words",
        (
            f"what is the (opposite|antonym) of {_QUOTED}",
            f"what is the word for the opposite of {_QUOTED}",
            "(give|tell) me the (opposite|antonym) of {word}",
            "(name|say) the (opposite|antonym) of {word}",
            "{word} is the (opposite|antonym) of (what|which word)",
            "the (opposite|antonym) of {word} is (what|which word)",
            "(which|what) word is (the|an) (opposite|antonym) of {word}",
            "opposite of {word}",
            "what is the contrary of {word}",
            "what word means the opposite of {word}",
        ),
        (
            "{word} has which opposite",
            "if something is not {word} but the opposite, what is it",
            "I need an antonym for {word}",
        ),
        "The opposite of {word} is {value}.", OPPOSITES, 1.8,
        noun=(
            "the opposite of {word}|the opposite of the word {word}|the antonym of {word}|"
            "the word opposite to {word}|the contrary of {word}|an opposite for {word}"
        ),
    ),
    Relation(
        "plural", "words",
        (
            f"what is the plural (form|) of {_QUOTED}",
            "(give|tell) me the plural (form|) of {word}",
            "(name|say|write) the plural of {word}",
            "the plural of {word} is (what|which word)",
            "(which|what) word is the plural of {word}",
            "plural of {word}",
            "one {word}, two what",
            "how do you (say|write|form) the plural of {word}",
            "{word} in the plural is what",
            "what do you call more than one {word}",
            "make {word} plural",
            "what is {word} in (the plural|plural form)",
        ),
        (
            "I have one {word}, and now I have two of what",
            "{word} becomes what in the plural",
            "which plural does the word {word} have",
        ),
        "The plural of {word} is {value}.", PLURALS, 1.8,
        noun=(
            "the plural of {word}|the plural form of {word}|the plural of the word {word}|"
            "the word for two of one {word}|the plural for {word}|"
            "what {word} is in the plural"
        ),
    ),
    Relation(
        "spell", "spelling",
        (
            f"(spell|please spell|can you spell|spell out) {_QUOTED}",
            f"how (do you spell|is|do I spell|does one spell) {_QUOTED} (spelled|)",
            f"how do (you|I) spell {_QUOTED}",
            f"what is the spelling of {_QUOTED}",
            f"(write|say|give me|tell me) the letters of {_QUOTED}",
            "spell {word} letter by letter",
            "what letters are in {word}",
            "(show|tell) me how to spell {word}",
            f"what are the letters of {_QUOTED}",
        ),
        (
            "I forgot the spelling of {word}",
            "{word} is spelled how",
            "go through {word} one letter at a time and spell it",
        ),
        "{word} is spelled {spelled}.", _asking("spelled"), 2.2,
        noun=(
            "the spelling of {word}|how to spell {word}|how {word} is spelled|"
            "the letters of {word}|all the letters in {word} one by one|"
            "the spelling of the word {word}"
        ),
    ),
    Relation(
        "first letter", "spelling",
        (
            f"(what|which) (is the|letter is the) first letter (of|in) {_QUOTED}",
            "{word} (starts|begins) with (what|which) letter",
            f"(what|which) letter does {_QUOTED} (start|begin) with",
            f"(tell me|name|give me) the first letter of {_QUOTED}",
            f"with (what|which) letter does {_QUOTED} (start|begin)",
            f"the first letter of {_QUOTED} is (what|which)",
        ),
        ("which letter comes first in {word}", "the word {word} has which first letter"),
        "The first letter of {word} is {value}.", _asking("first"),
        noun=(
            "the first letter of {word}|the first letter in {word}|"
            "the letter that {word} starts with|which letter {word} begins with|"
            "the letter at the start of {word}"
        ),
    ),
    Relation(
        "last letter", "spelling",
        (
            f"(what|which) (is the|letter is the) (last|final) letter (of|in) {_QUOTED}",
            "{word} (ends|finishes) with (what|which) letter",
            f"(what|which) letter does {_QUOTED} (end|finish) with",
            f"(tell me|name|give me) the (last|final) letter of {_QUOTED}",
            f"with (what|which) letter does {_QUOTED} (end|finish)",
            f"the (last|final) letter of {_QUOTED} is (what|which)",
        ),
        ("which letter comes last in {word}", "the word {word} has which last letter"),
        "The last letter of {word} is {value}.", _asking("last"),
        noun=(
            "the last letter of {word}|the last letter in {word}|"
            "the letter that {word} ends with|which letter {word} ends with|"
            "the letter at the end of {word}|the final letter of {word}"
        ),
    ),
    Relation(
        "letters", "spelling",
        (
            f"how many letters (are in|are there in|does) {_QUOTED} (have|)",
            f"how many letters has {_QUOTED}",
            f"(what is|tell me|give me) the number of letters (in|of) {_QUOTED}",
            "{word} has how many letters",
            f"(how long is|count the letters of|count the letters in) {_QUOTED}",
            "how many letters long is {word}",
        ),
        ("the word {word} consists of how many letters", "if I count the letters of {word}, how many"),
        "The word {word} has {value} letters.", _asking("length"), 1.3,
        noun=(
            "the number of letters in {word}|how many letters {word} has|"
            "how many letters are in {word}|the length of the word {word}|"
            "the count of letters in {word}"
        ),
    ),
    Relation(
        "article", "words",
        (
            "(is it|should I write|do you say) a or an (before|with) {word}",
            "(a or an|'a' or 'an') {word}",
            "which article (goes|comes) (before|with) {word}",
            "what is the (indefinite|) article of {word}",
        ),
        ("does {word} take a or an", "a {word} or an {word}, which is right"),
        "It is {value}.",
        tuple(
            {"word": word, "value": a(word)}
            for word in listed("apple dog egg cat orange house island tree ant car owl book ox fish")
        ), 0.5,
        noun=(
            "the article of {word}|the right article for {word}|a or an for {word}"
        ),
    ),
)  # fmt: skip
