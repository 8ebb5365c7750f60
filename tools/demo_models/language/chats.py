"""Building blocks of chats: names, requests for a style, follow-up questions, questions for the user's name."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.demo_models.language.facts.phrasing import listed

Message = dict[str, str]


@dataclass(frozen=True)
class Document:
    """A training text: a chat, or where `raw` is true one question and its answer."""

    messages: tuple[Message, ...]
    raw: bool = False


def say(role: str, content: str) -> Message:
    """One message of a chat."""
    return {"role": role, "content": content}


NAMES = listed(
    "Ana Ben Carla David Emma Felix Grace Hugo Ines Jack Kira Leo Maria Nina Omar Paul Rosa Sam "
    "Tina Victor Wendy Yuki Zoe Alice Bob Clara Daniel Eva Frank Gina Henry Ivan Julia Karl Laura "
    "Marta Noah Olga Peter Rita Simon Tom Vera Walter Minho Jisoo Sofia Lucas Mateo Camila Diego "
    "Lucia Pedro Joao Beatriz Rafael Mina Hana Jun Aisha Ali Fatima Priya Ravi Chen Li Wei Anna"
)
NAMES_DEVELOPMENT = listed("Oscar Lena Marco Sara")
NAMES_HELDOUT = listed("Ivy Theo Nora Max Selma Bruno Kasper Amelie")
_STARTS = listed("B Br C Ch D Dr F G Gr H J K Kr L M N P Pr R S Sh St T Th Tr V W Y Z A E I O U")
_VOWELS = listed("a e i o u a e i o ai ee ia ie io ua")
_MIDDLES = listed("b d f g k l ll m n nn p r rr s t th v z nd rt sk lm")
_ENDS = (*listed("n s l r x m t ck th ra na la ne us"), "", "", "")


def a_name(rng: random.Random) -> str:
    """A name for the user: often of random syllables, so that the model learns to copy it."""
    while True:
        name = rng.choice(NAMES)
        if rng.random() < 0.75:
            name = rng.choice(_STARTS)
            name += rng.choice(_VOWELS[:5]) if len(name) > 1 or name not in "AEIOU" else ""
            for _ in range(rng.choice((0, 1, 1, 1, 2))):
                name += rng.choice(_MIDDLES) + rng.choice(_VOWELS)
            name += rng.choice(_ENDS)
        if len(name) > 1 and name not in NAMES_HELDOUT + NAMES_DEVELOPMENT:
            return name


SYSTEMS = {
    "plain": (
        "You are a helpful assistant.", "You are a small and helpful model.", "Answer the question.",
        "You are the demo model of Podslice.", "Be polite and answer the user.", "Be helpful.",
        "You are a friendly assistant. Answer the user's questions.",
    ),
    "short": (
        "Answer with one word.", "Answer in one word only.", "Be as short as possible.",
        "Reply with a single word or number.", "Give only the answer, without a sentence.",
        "Answer as shortly as you can.", "Answer briefly.", "Use as few words as possible.",
    ),
    "json": (
        "Answer in JSON.", "Reply with a JSON object.", 'Answer as JSON: {"answer": ...}.',
        "Always answer with JSON.", "Your reply must be JSON with the key answer.",
    ),
}  # fmt: skip
REQUESTS = {
    "short": ("in one word:", "answer in one word:", "short answer:", "answer briefly:", "briefly:"),
    "json": (
        "answer in JSON:", "reply in JSON:", "as JSON:", "answer with JSON:", "in JSON, please:",
        "give me JSON:",
    ),
}  # fmt: skip
FOLLOW_UPS = {
    1: (
        "and (then|next|after that)", "and (what|which one) (comes|is) (next|after that)",
        "what comes (next|after that)", "what about the (next|following) one", "and the next one",
        "and the one after that", "next", "(and|so|) what (comes|is|follows) (then|after it|after this)",
        "(and|) (which|what) (one|) (is|comes) (the next|the following|after this) (one|)", "go on", "continue",
        "(and|) (which|what) one (follows|is after it|is after that|comes after it)", "(and|so) then what",
    ),
    -1: (
        "and before (that|it)", "and (what|which one) (comes|is) before (that|it)",
        "what comes before that", "and the (previous one|one before|one before that)",
        "(and|) (which|what) (one|) (is|comes|was) (the previous|before this|before it) (one|)",
        "(and|so) before (this|it) what",
        "(and|) which one precedes (it|that|this)",
    ),
}  # fmt: skip
FOLLOW_UPS_DEVELOPMENT = {1: ("and after that one", "and what follows"), -1: ("and the one before it",)}
SAME_AGAIN = ("(and|what about|and what about|how about|and for|now) {topic}",)
TOPICS = {
    "capital": "country", "opposite": "word", "plural": "word", "young": "a_animal",
    "sound": "a_animal", "legs": "a_animal", "color of": "thing", "parts": "", "spell": "word",
    "days in month": "month", "language use": "topic", "letters": "word", "first letter": "word",
}  # fmt: skip
MY_NAME = (
    "my name is {name}", "I am {name}", "I'm {name}", "call me {name}", "hello, my name is {name}",
    "hi, I am {name}", "hey, {name} here", "I am called {name}", "please call me {name}",
    "you can call me {name}", "the name is {name}", "it is {name} here", "{name} is my name", "this is {name}",
    "good morning, I am {name}", "hello, I'm {name}", "people call me {name}",
)  # fmt: skip
WHO_AM_I = (
    "what is my name", "what's my name", "who am I", "do you (remember|know) my name",
    "(tell me|say) my name", "what am I called", "how am I called", "what did I say my name was",
    "(can|could|would) you (say|repeat|remember|recall) (my name|what I am called|who I am)",
    "(which|what) name (do I have|have I got|is mine|did I say|did I mention|have I told you|have I given you)",
    "(do you|can you) (still|) (know|remember|recall) (my name|who I am|what my name was|the name I gave)",
    "(I forgot|remind me of|now say|repeat) my name", "my name is (what|)",
    "who (is it|do you talk to|are you talking to)",
    "how (do you call me|did I introduce myself|should you call me)", "(and|so|now) (what is my name|who am I)",
)  # fmt: skip
WHO_AM_I_DEVELOPMENT = ("which name did I give you", "can you still tell me what my name is")
