"""The phrasings of the held-out evaluation, which no training text has.

Written before the training phrasings were last extended; seven that the extension then contained were replaced, before
any model had been scored on them. Do not tune against them: use the development phrasings of each relation to see what
goes wrong.
"""

from __future__ import annotations

HELDOUT: dict[str, tuple[str, ...]] = {
    # the calendar
    "day after": (
        "which day will it be a day after {item}", "my trip starts one day later than {item}, on what day is that",
    ),
    "day before": ("what day was it a day before {item}", "one day earlier than {item} is which day"),
    "month after": (
        "when {item} ends, which month begins", "the month that comes straight after {item} is called",
    ),
    "month before": ("which month ends when {item} begins", "one month earlier than {item} is what month"),
    "season after": ("when {item} ends, which season begins", "the season that begins once {item} is gone is which"),
    "days in month": ("tell me how many days {month} has got", "{month} is how many days long"),
    "nth month": ("which month do we call the {nth} one of the year", "the year's {nth} month is which"),
    "nth day": ("which day do we call the {nth} one of the week", "the week's {nth} day is which"),
    # units and the world
    "parts": (
        "a full {whole} has how many {parts}", "could you say how many {parts} go into {a_whole}",
        "what is the count of {parts} in one {whole}",
    ),
    "sides": ("a {shape} is a shape with how many sides", "could you say how many corners a {shape} has got"),
    "color of": (
        "could you say what color {thing} normally have", "I want to paint {thing}, which color do I need",
    ),
    "color mix": (
        "what color will I have after mixing {one} with {two}", "put {one} and {two} paint together, which color is it",
    ),
    "sound": ("could you say what noise {a_animal} makes", "what sound comes from {a_animal}"),
    "young": ("what's the right word for a {animal} that is still a baby", "a little {animal} is known as what"),
    "legs": ("could you say how many legs {a_animal} has got", "what number of legs does {a_animal} have"),
    "capital": (
        "I am flying to the capital of {country}, which city is that",
        "what's the name of the capital city of {country}",
    ),
    "country of capital": (
        "{value_city} is a capital, but of which country", "which country is {value_city} the capital of",
    ),
    "planet": ("which planet do we find {nth} from the sun", "the sun's {nth} planet is which one"),
    # words and spelling
    "opposite": (
        "the exact opposite of {word} would be which word", "what's a word that means the opposite of {word}",
    ),
    "plural": ("if there is more than one {word}, what do I write", "could you say the plural of the noun {word}"),
    "spell": ("could you write out the letters of {word}", "I do not know how {word} is spelled, help me"),
    "first letter": ("at the start of {word} stands which letter", "could you say what letter {word} starts with"),
    "last letter": ("at the end of {word} stands which letter", "could you say what letter {word} ends with"),
    "letters": ("could you say how many letters {word} has got", "how many letters do I need to write {word}"),
    "article": ("do I put a or an before {word}", "which is correct before {word}, a or an"),
    # numbers
    "sum": (
        "what will {x} plus {y} give me", "could you add up {x} and {y}",
        "I had {x} coins and found {y} more, how many coins do I have",
    ),
    "difference": (
        "what will {x} minus {y} give me", "could you subtract {y} from {x}",
        "I had {x} coins and lost {y}, how many coins are left",
    ),
    "product": ("what will {x} times {y} give me", "could you multiply {x} by {y}"),
    "larger": ("which of the numbers {x} and {y} is the larger", "could you say if {x} or {y} is bigger"),
    "smaller": ("which of the numbers {x} and {y} is the smaller", "could you say if {x} or {y} is less"),
    "next number": ("when I count, which number do I say after {x}", "could you say the number that comes after {x}"),
    "previous number": (
        "when I count, which number do I say before {x}", "could you say the number that comes before {x}",
    ),
    # Podslice and the model itself
    "what is podslice": ("could you explain what podslice is all about", "what is the purpose of podslice"),
    "podslice word": ("what exactly do you call a podslice", "what is meant by the word podslice"),
    "start": ("which command do I type so that the server starts", "what is the way to launch podslice on my computer"),
    "port": ("what port number will the server be using", "the server can be reached on which port"),
    "ask": ("what do I run to send a question to the model", "which command sends my prompt to the running server"),
    "test": ("what is the command for running the tests", "how would I go about running the test suite"),
    "license": ("what sort of license does podslice come with", "is there a license for podslice, and which"),
    "runs on": ("what kind of hardware do I need for podslice", "podslice runs on which machines"),
    "built with": ("which libraries was podslice built with", "podslice was made using which frameworks"),
    "who are you": ("could you tell me who you are", "which model am I talking to right now"),
    "size": ("could you say how many parameters you have", "what number of parameters do you have"),
    "skills": ("tell me on which subjects you can answer questions", "what would you be able to do for me"),
    # programming
    "top languages": (
        "please list the five programming languages that are most popular",
        "what five programming languages are used the most",
    ),
    "language use": ("what are people doing with {topic}", "why would somebody choose {topic}"),
    "library use": ("could you explain what {topic} is", "what exactly is {topic}"),
    # manners
    "greeting": ("hello to you, little model", "hello, it is good to see you"),
    "how are you": ("how are you doing this morning", "hello there, how is it going today"),
    "thanks": ("thank you, that was a great help", "thanks, you helped me a lot"),
    "bye": ("goodbye, and see you soon", "I have to leave, bye bye"),
    "unknown": ("how will the weather be on Sunday", "please write a long story about a dragon"),
}  # fmt: skip
"""Templates by the name of the relation that they ask about."""

WHO_AM_I = (
    "could you tell me my name",
    "what name did I tell you",
    "do you still know what I am called",
)
FOLLOW_UPS = {1: ("and which comes after that one", "so what is next"), -1: ("and which comes before that one",)}
