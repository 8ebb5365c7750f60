"""Further training phrasings of each relation: statements, conditions and indirect questions."""

from __future__ import annotations

_AFTER = (
    "(suppose|say|imagine) it is {item}, (what|which) {kind} (is|comes|follows) (next|then|after that)",
    "I know that {item} comes first, (but|so|and) (what|which {kind}) (comes|is) (next|second|then)",
    "first comes {item} and then comes (what|which {kind})",
    "{item} and then (what|which {kind})",
    "(when|after|as soon as) {item} (is over|is done|has passed|is finished|stops), "
    "(what|which) {kind} (is it|comes|starts|follows|is next|do we have)",
    "(what|which) {kind} (will it be|is it|do we get|starts) (after|right after|following) {item}",
    "{item} has (ended|passed|gone), (so what|what|and which) {kind} (is it now|is now|comes now)",
    "(the|a) {kind} later than {item} is (what|which|called)",
    "{item}, then comes the {kind}",
    "the {kind} after {item} is",
    "the next {kind} after {item} is",
    "(what|which {kind}) (is next|comes next|is the next one) if (we have|it is|this is) {item}",
)
_BEFORE = (
    "(suppose|say|imagine) it is {item}, (what|which) {kind} (was|came) (before|last|just before)",
    "(what|which {kind}) comes first and then {item}",
    "before {item} (there was|we had|was) (what|which {kind})",
    "(what|which) {kind} (was it|was there|did we have|ended|ends) (before|right before|just before) {item}",
    "{item} (has begun|starts), (so what|what|and which) {kind} (is over|was it|came before|just passed)",
    "(the|a) {kind} earlier than {item} is (what|which|called)",
    "the {kind} before {item} is",
    "the previous {kind} before {item} is",
    "{item} (comes|follows) after (what|which {kind})",
    "{item} (comes|follows) right after (what|which {kind})",
)


def _of(kind: str, templates: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one.replace("{kind}", kind) for one in templates)


_LOOK = "(look at|see|think of|imagine|draw|paint|buy|find|touch|wash|take)"
_HAVE = "(I have|I've got|we have|there is|I see|take|imagine|draw)"
_STEP = "(slowly|letter by letter|one by one|one letter after the other|for me|correctly|)"

MORE: dict[str, tuple[str, ...]] = {
    "day after": (
        *_of("day", _AFTER),
        "(it's|today's|we have|now it is) {item}, (and|then|so) (what|which day) (is|will it be) tomorrow",
        "tomorrow's day if today is {item}", "what will tomorrow be (if|when) today is {item}",
        "(yesterday was|the day was) {item}, (what|which day) is (it today|today)",
    ),
    "day before": (
        *_of("day", _BEFORE),
        "(it's|today's|we have|now it is) {item}, (and|then|so) (what|which day) was (it|) yesterday",
        "yesterday's day if today is {item}", "what was yesterday (if|when) today is {item}",
        "(tomorrow is|tomorrow will be) {item}, (what|which day) is (it today|today)",
    ),
    "month after": _of("month", _AFTER),
    "month before": _of("month", _BEFORE),
    "season after": _of("season", _AFTER),
    "days in month": (
        "(the month of|) {month} (lasts|runs|goes on) (for|) how (many days|long)",
        "how many days (long|) (is|lasts) (the month of|) {month}", "how long does {month} last (in days|)",
        "for how many days does {month} (last|run)", "{month}: how many days",
        "(what|which) number of days (is in|makes up|belongs to) {month}",
        "{month} (has|counts|comes with) how many days", "how many days (can you count|do you find|pass) in {month}",
        "I count the days of {month}, how many (are there|do I get)",
    ),
    "nth month": (
        "(what|which) month (of the year|) has the number {number}",
        "month {number} of the year is (what|which|called)", "I count the months, which (one|month) is (the|) {nth}",
        "the {nth} of the twelve months is (what|which|called)",
        "of all (the|twelve) months, which (one|) is (the|) {nth}", "the {nth} month has which name",
        "how (do we|do you|do people) call the {nth} month (of the year|)", "the {nth} month, (what|which) is it",
    ),
    "nth day": (
        "(what|which) day (of the week|) has the number {number}", "day {number} of the week is (what|which|called)",
        "I count the days of the week, which (one|day) is (the|) {nth}",
        "of all (the|seven) days of the week, which (one|) is (the|) {nth}",
        "how (do we|do you|do people) call the {nth} day of the week", "the {nth} day of the week, (what|which) is it",
    ),
    "parts": (
        "(if|when) I (have|take|look at) {a_whole}, how many {parts} (do I have|are there|is that)",
        "{a_whole} (is made of|is made up of|holds|includes|equals|lasts|counts) how many {parts}",
        "how many {parts} (fit in|belong to|does one find in|does it take to make|are needed for) {a_whole}",
        "how many {parts} (will|can|should|could|might) (I|you|we) (count|find|get|see) in {a_whole}",
        "(one|every|each) {whole} (has|holds|includes|is made of) how many {parts}",
        "what('s| is) the (total|exact|usual) number of {parts} (in|for|of) {a_whole}",
    ),
    "sides": (
        "(if|when) (I|you|we) (draw|have|look at|cut out) a {shape}, how many (sides|corners|angles) (does it have|"
        "are there|has it)",
        f"{_HAVE} a {{shape}}, how many (sides|corners) (has it|does it have|is that)",
        "(one|every|each|any) {shape} (has|comes with|is made of) how many (sides|corners|angles)",
        "how many (sides|corners) (will|can|should) (I|you) (count|draw|find) (on|in|for) a {shape}",
    ),
    "color of": (
        f"(if|when) (I|you|we) {_LOOK} {{thing}}, (what|which) (color|colour) (is it|are they|is that|do you see|"
        "will I find)",
        "{thing} (usually|normally|mostly|often|always) (are|is|have|show) (what|which) (color|colour)",
        "(what|which) (color|colour) (should|could|can|must|might) {thing} (be|have)",
        "{thing} (come|comes|grow|appear) in (what|which) (color|colour)", "{thing}: (what|which) (color|colour)",
        "(what|which) (color|colour) (is typical for|belongs to|goes with|do I see on|do you expect of) {thing}",
        "(I am painting|I draw|she paints) {thing}, (what|which) (color|colour) (do I take|is right|should I use)",
    ),
    "color mix": (
        "(I|we|you) (mix|combine|stir|pour|put) {one} (and|with|into) {two} (paint|), (what|which) color (is it|do "
        "I get|is that|comes)",
        "(if|when) (I|you|we) (mix|combine|add|blend|stir) {one} (and|with|to) {two}, (what|which color) (do I get|"
        "comes out|is it|results)",
        "{one} paint (and|with|plus) {two} paint (makes|gives|is|gets me) (what|which color)",
        "(blend|blending|mixing|stirring) {one} (and|with) {two} (paint|) (gives|results in|makes) (what|which "
        "color)",
        "from {one} and {two} (I|you|we) get (what|which color)",
        "(what|which) color (will|would|can) {one} and {two} (make|give|become)",
    ),
    "sound": (
        "(if|when) {a_animal} (is loud|calls|speaks|cries|wants something), what (does it do|do I hear|sound is it)",
        "(what|which) (sound|noise) (can|will|would|do) (I|you|we) hear (from|near|when there is) {a_animal}",
        "{a_animal} (does|says|goes) what", "what does {a_animal} do to be heard",
        "how does {a_animal} (talk|call|speak)",
        "(what|which) (sound|noise) (is typical|is usual|is normal) for {a_animal}",
    ),
    "young": (
        "(what|which word) do (I|we|people) (use for|say for|call) (a very young|a newborn|a small|the child of a) "
        "{animal}",
        "a {animal} (baby|child) is (called|named) (what|)",
        "(when|if) a {animal} is (very young|just born|a baby), what is it (called|)",
        "a (newborn|very young|small) {animal} is (called|named) (what|)",
        "how is a (baby|newborn|young) {animal} called",
        "the {animal} (has|had) a baby, what (is it called|do we call it)",
    ),
    "legs": (
        "(if|when) (I|you) (see|look at|draw) {a_animal}, how many legs (has it|does it have|do I count|are there)",
        "how many legs (can|will|should|do) (I|you|we) (count|find|see|draw) on {a_animal}",
        "{a_animal} (stands|walks|runs|moves) on how many legs", "{a_animal}: how many legs",
        "I count the legs of {a_animal}, how many (are there|do I get)",
    ),
    "capital": (
        "(I am in|we live in|she is from|he visits) {country}, what is the capital (there|)",
        "(which|what) city (is|became|acts as|works as|do we call|is known as) the capital (city|) (of|in) {country}",
        "{country} (has|got) which city as its capital", "{country}'s capital is (what|which city|called)",
        "for {country}, (what|which city) is the capital",
        "(I want|we plan|she likes) to (see|visit) the capital of {country}, (what|which city) is it",
        "how is the capital of {country} called", "{country} and its capital (city|) is", "{country}, what capital",
    ),
    "country of capital": (
        "{value_city} is (the|a) capital (city|) (in|of) (what|which) country",
        "(what|which) country (has|is with|uses) {value_city} as its capital city",
        "(I am in|she visits) {value_city}, it is the capital of (what|which country)",
        "{value_city} is the capital city of", "for (what|which) country is {value_city} the capital (city|)",
        "whose capital (city|) is {value_city}",
    ),
    "planet": (
        "(I count|we count|counting) the planets (from the sun|), (what|which) (one|planet) is (the|) {nth}",
        "(what|which) planet (has the|is in) {nth} place (from the sun|)",
        "how (do we|do you|do people) call the {nth} planet",
        "of all (the|eight) planets, which (one|) is (the|) {nth} (from the sun|)",
        "the {nth} planet, (what|which) is it",
    ),
    "opposite": (
        "{word} has (what|which word) as (its|an) opposite",
        "(what|which) (is|would be) the (reverse|contrary|opposite) of {word}",
        "(something|it) is not {word}, it is the opposite, (so what is it|which is it|what then)",
        "not {word} but the (opposite|contrary), (what is it|which word is it|that is)",
        "(I|we) (need|want|search|look for) (an|the|a word for the) (antonym|opposite) (of|for|to) {word}",
        "{word} and its opposite", "what is (not|the contrary to) {word}", "{word}: (which|what) opposite",
        "if one is {word}, the opposite is (what|which)", "(what|which) opposite (has|does) {word} (have|)",
    ),
    "plural": (
        "(here is|there is|I have|I see|we have) one {word}, (and|but) (there|here) are two (what|of what)",
        "(I have|he has|she buys) (one|a) {word} and then (another|one more), (so two|now there are two) what",
        "{word} (turns into|changes to|is) (what|which word) in the plural", "two of {word} are (called|) what",
        "many (of|) {word} are (called|) what", "(what|which) plural (form|) (has|does) {word} (have|take|)",
        "from {word} (to the|make the|build the) plural", "how do I (make|build|get) the plural of {word}",
        "{word}: (which|what) plural", "in the plural {word} is (what|which word)",
    ),
    "spell": (
        f"(spell|write|type|say) {{word}} {_STEP}",
        f"(take|go over|read|walk through) the word {{word}} {_STEP} (and spell it|)",
        "(how|in what way) is {word} (spelled|written)", "{word} is (written|spelled) (how|in what way|like what)",
        "I (forget|can't remember|don't remember|want to know|need) how to (spell|write) {word}",
        "{word}, (spell it|how do I spell it|letter by letter|the letters please)",
        f"which letters (make|make up|form|are in) {{word}} {_STEP}",
        "(help me spell|show the spelling of|I want to spell) {word}",
    ),
    "first letter": (
        "{word} has (what|which) (first letter|letter at the start|letter first)",
        "(what|which) letter (comes|stands|is|goes) (first|at the start|at the beginning) (in|of) {word}",
        "{word}: first letter", "(if|when) I (spell|write) {word}, (what|which) letter (is|comes) first",
        "(what|which) is the (start|starting|beginning|opening) letter of {word}",
    ),
    "last letter": (
        "{word} has (what|which) (last letter|letter at the end|letter last)",
        "(what|which) letter (comes|stands|is|goes) (last|at the end) (in|of) {word}", "{word}: last letter",
        "(if|when) I (spell|write) {word}, (what|which) letter (is|comes) last",
        "(what|which) is the (end|ending|closing) letter of {word}",
    ),
    "letters": (
        "{word} (consists of|is made of|contains|counts|needs) how many letters",
        "(if|when) I (spell|write|count) {word}, how many letters (are there|is that|do I count)",
        "I count the letters (of|in) {word}, how many (are there|do I get)",
        "how many letters (make up|form|belong to|can I count in) {word}", "{word}: how many letters",
        "how (long|many letters) is the word {word}",
    ),
    "article": (
        "{word} (takes|needs|wants|gets) a or an", "(does|should|will) {word} (need|get|have) a or an",
        "a or an for {word}", "a {word} or an {word}",
        "(is it|do I say|do you write|which is right,|what is correct:) a {word} or an {word}",
    ),
    "sum": (
        "(what|how much) (does|do|will|would) {x} (plus|and) {y} (make|be|equal|come to)",
        "{x} and {y} (make|is|gives|together make) (what|how much)",
        "(if|when) (I|you|we) (put|take|add|count) {x} and {y} (together|), (what|how much) (is it|is that|do I get)",
        "(solve|find|answer|do) {x} (+|plus) {y} (for me|)", "the sum of {x} and {y} (is|makes|gives) (what|)",
        "(she|he|Tom|I) (has|had|have) {x} (books|pens|balls|cards|cookies) and (gets|buys|finds|takes) {y} more, "
        "how many (books|pens|balls|cards|cookies|) (are there|in all|is that)",
        "what is {y} more than {x}", "{x} (+|plus) {y} (is|=) (?|what|)", "{x} increased by {y} is (what|)",
    ),
    "difference": (
        "(what|how much) (does|will|would) {x} minus {y} (make|be|equal|come to|leave)",
        "{x} without {y} (is|makes|leaves) (what|how much)",
        "(if|when) (I|you|we) (take|remove|subtract) {y} (away|) from {x}, (what|how much) (is left|do I have|"
        "remains)",
        "(solve|find|answer|do) {x} (-|minus) {y} (for me|)",
        "from {x} take (away|) {y}, (what|how much) (is left|remains|)",
        "(she|he|Tom|I) (has|had|have) {x} (books|pens|balls|cards|cookies) and (gives away|sells|loses|eats) {y}, "
        "how many (books|pens|balls|cards|cookies|) (are left|remain|is that)",
        "what is {y} less than {x}", "{x} (-|minus) {y} (is|=) (?|what|)", "{x} (reduced|decreased) by {y} is (what|)",
    ),
    "product": (
        "(what|how much) (does|will|would) {x} times {y} (make|be|equal|come to)",
        "(if|when) I multiply {x} (by|with|and) {y}, (what|how much) (is it|do I get)",
        "(solve|find|answer|do) {x} (*|times) {y} (for me|)", "{x} multiplied by {y} (is|makes) (what|)",
        "{x} (*|times|x) {y} (is|=) (?|what|)",
    ),
    "larger": (
        "(between|from|of|comparing) {x} and {y}, (which|what) (one|number|) is (the|) (larger|bigger|greater) (one|"
        ")",
        "{x} or {y}, (which|what) (one|number|) is (larger|bigger|greater|more)",
        "{x} and {y}: (which|what) is (larger|bigger|greater|more)",
        "(is|what is) (bigger|larger|greater|more), {x} or {y}",
        "compare {x} and {y}, which (one|) is (larger|bigger|greater)",
        "(find|pick|choose|take) the (larger|bigger|greater) (one|number) of {x} (and|or) {y}",
        "is {x} (larger|bigger|greater|more) than {y} or is {y}",
    ),
    "smaller": (
        "(between|from|of|comparing) {x} and {y}, (which|what) (one|number|) is (the|) (smaller|lower) (one|)",
        "{x} or {y}, (which|what) (one|number|) is (smaller|lower|less)",
        "{x} and {y}: (which|what) is (smaller|lower|less)", "(is|what is) (smaller|lower|less), {x} or {y}",
        "compare {x} and {y}, which (one|) is (smaller|lower|less)",
        "(find|pick|choose|take) the (smaller|lower) (one|number) of {x} (and|or) {y}",
        "is {x} (smaller|lower|less) than {y} or is {y}",
    ),
    "next number": (
        "(I|we) count (up|) to {x}, (what|which number) (is|comes) (next|then|after that)",
        "{x} and then (what|which number)",
        "(if|when) (I|you|we) count, (what|which number) (is|comes|follows) (after|right after) {x}",
        "first {x}, then (what|which number)", "(what|which) number (do|will) (I|we|you) (get|reach|have) after {x}",
        "the (next|following) number after {x} is", "{x} is followed by (what|which) number",
        "counting (up|on) from {x}, (what|which number) (is|comes) next",
    ),
    "previous number": (
        "(if|when) (I|you|we) count, (what|which number) (is|comes) (before|just before|right before) {x}",
        "{x} comes (right|) after (what|which number)",
        "(what|which) number (was it|is it|was there|do I have) (right|just|) before {x}",
        "the (previous|number) before {x} is", "{x} is preceded by (what|which) number",
        "counting (down|back) from {x}, (what|which number) (is|comes) (next|then)",
    ),
    "language use": (
        "(what|where|for what) (can|could|should|do|would) (I|you|we|one|people) use {topic} (for|)",
        "{topic} is (good|useful|great|made|best|the right choice) for what",
        "what is {topic} (good at|best for|made for|useful for|chosen for)",
        "when (do|should|would) (I|people|we) (use|choose|pick|take|learn) {topic}",
        "what (do|can) (I|you|people|programmers) (do|make|build|write) (with|in|using) {topic}",
        "(which|what) (kind of|sort of|) (programs|things|work|tasks) (is|are) {topic} (good|used|made) for",
        "why (should|do|would) (I|people|programmers) (learn|pick|choose|like) {topic}", "{topic} is used for",
        "what is the purpose of {topic}", "{topic}, (what for|what is it used for)",
    ),
    "library use": (
        "(I|we) (do not know|don't know|never heard of|read about|want to understand) {topic}, what is (it|that)",
        "what (kind of thing|sort of thing|thing) is {topic}",
        "(could|can|would) you (explain|describe|define) {topic} (to me|for me|)",
        "(define|what is meant by|what do you mean by|what do people mean by) {topic}",
        "(somebody|my boss|a friend) (told me|talks|spoke) about {topic}, what is (it|that)",
        "how would you (describe|define) {topic}", "{topic}, what is (it|that)", "{topic} is what",
        "what do (I|we|people) (need|use) {topic} for",
    ),
}  # fmt: skip
"""Templates by the name of the relation that they ask about."""
