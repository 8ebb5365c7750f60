"""Facts about Podslice, the model itself and programming, and polite phrases."""

from __future__ import annotations

from tools.demo_models.language.facts.relations import Relation

UNKNOWN = "I do not know that. I am only a small demo model."
"""The answer to what it does not know."""

NAME = "Podslice"


def _fact(name, category, answer, value, train, development, weight=1.0) -> Relation:
    """A relation of one row."""
    return Relation(name, category, train, development, answer, ({"value": value},), 1.6 * weight)


PROJECT = (
    _fact(
        "what is podslice", "podslice",
        "Podslice serves language models and Stable Diffusion on Cloud TPU slices with Ray Serve.",
        "language models and Stable Diffusion",
        (
            "what is podslice", "what does podslice do", "what is (this|the) podslice project",
            "(tell me about|explain|describe) podslice", "what is podslice (for|used for|good for)",
            "what does this (project|software|repository) do", "what is this (project|software)",
            "who or what is podslice", "what can (podslice|this project) do", "podslice",
            "what does podslice (serve|run)",
        ),
        ("I have never heard of podslice, what is it", "what would I use podslice for"), 3.0,
    ),
    _fact(
        "podslice word", "podslice",
        "A podslice is a TPU slice: the chips that one replica of a model owns.", "TPU slice",
        (
            "what is a podslice", "what does the word podslice mean", "what is a (tpu|) slice",
            "(define|explain) the word podslice", "what does (podslice|slice) mean",
            "what is the meaning of (podslice|the word podslice)",
        ),
        ("the word podslice stands for what", "what do people mean by a podslice"), 1.5,
    ),
    _fact(
        "start", "podslice", "Run `make serve` to start the server.", "make serve",
        (
            "how do I (start|run|launch|use) (podslice|the server|it|this project)",
            "how (can|do) (I|we|you) (start|run|launch) (podslice|the server|the service)",
            "(which|what) command (starts|runs|launches) (podslice|the server|the service)",
            "what (should|do) I (run|type) to (start|launch) (podslice|the server)",
            "how to (start|run|launch) (podslice|the server)",
            "how (can|do) I serve (a|the|this) model", "how is (podslice|the server) started",
            "(start|launch|run) the server",
        ),
        ("I want to get podslice running, what do I type", "what makes the server start up"), 2.0,
    ),
    _fact(
        "port", "podslice", "The server listens on port 8000.", "8000",
        (
            "(which|what) port (does|is) (podslice|the server|it|the service) (use|listen on|on)",
            "on (which|what) port (does|is) (podslice|the server) (run|listen|listening)",
            "(what is|tell me) the port (of|for) (podslice|the server|the service)",
            "(what|which) is the (port number|http port|server port)",
            "where does (podslice|the server) listen", "port of (podslice|the server)",
            "(which|what) port do I (need|use|call)",
        ),
        ("which port number should my client connect to", "podslice listens where, on which port"),
        1.5,
    ),
    _fact(
        "ask", "podslice", 'Run `python clients/llm_req.py "your question"` to ask the model.',
        "python clients/llm_req.py",
        (
            "how do I (ask|query|call|prompt|talk to) (podslice|the model|the server|you)",
            "how (can|do) (I|we) send (a request|a prompt|a question|requests) (to|) "
            "(podslice|the model|the server)",
            "(which|what) (command|client|script) (asks|queries|calls|sends a prompt to) the (model|server)",
            "how to (ask|query|call|prompt) the (model|server)",
            "how do I (use|run) the (client|llm client)", "where is the client",
            "what (should|do) I (run|type) to (ask|query) the model",
        ),
        (
            "with which script do I send the model a question",
            "the server is up, so how do I send it a prompt",
        ), 1.5,
    ),
    _fact(
        "test", "podslice", "Run `make test` to run the tests.", "make test",
        (
            "how do I (run|start) the (tests|test suite|unit tests)",
            "how (can|do) (I|we) test (podslice|the project|it|this)",
            "(which|what) command runs the tests", "how to (test|run the tests of) (podslice|it)",
            "what (should|do) I (run|type) to test (podslice|it)", "how are the tests run",
            "run the tests",
        ),
        ("I changed some code, how do I check that the tests pass", "the tests are started how"),
    ),
    _fact(
        "license", "podslice", "The license is Apache-2.0.", "Apache-2.0",
        (
            "(what is|tell me|which is) the license (of podslice|of this project|)",
            "(which|what) license (does|has) (podslice|the project|it) (use|have)",
            "under (which|what) license is (podslice|the project|it)",
            "how is (podslice|it|the project) licensed", "license of podslice",
            "is podslice (open source|free software)", "can I use podslice at work",
        ),
        ("podslice comes under which license", "what are the license terms of podslice"),
    ),
    _fact(
        "runs on", "podslice",
        "Podslice runs on Cloud TPU slices on GKE, and on a laptop for tests.", "TPU",
        (
            "(what|which) hardware does podslice (run on|use|need)",
            "(what|which) (chips|accelerators|machines) does podslice (run on|use|need)",
            "where does podslice run", "on (what|which) (hardware|machines) does podslice run",
            "does podslice (run on|need) (a tpu|tpus|a laptop|gke)", "what do I need to run podslice",
        ),
        ("which kind of hardware is podslice made for", "where can I deploy podslice"),
    ),
    _fact(
        "built with", "podslice", "Podslice is built with Ray Serve and JAX, in Python.", "Ray Serve",
        (
            "what is podslice (built|made|written) (with|in|from)",
            "(which|what) (libraries|frameworks|tools|languages) does podslice (use|build on)",
            "(which|what) framework is (under|behind|inside) podslice",
            "in (which|what) language is podslice written", "does podslice use (ray|jax|python)",
            "how is podslice (built|made)",
        ),
        ("podslice builds on which libraries", "what software is podslice made from"),
    ),
    _fact(
        "who are you", "podslice",
        "I am the demo model of Podslice, a very small language model.", "demo model",
        (
            "who are you", "what are you", "what is your name", "(introduce|describe) yourself",
            "are you (a robot|a human|an ai|a language model|a bot|chatgpt|real)",
            "(tell me|say something) about yourself", "what kind of model are you",
            "which model (are you|is this)", "what should I call you", "who am I talking to",
        ),
        ("who is answering me here", "what sort of thing are you"), 2.0,
    ),
    _fact(
        "size", "podslice", "I have about three million parameters.", "four million",
        (
            "how (big|large|small) are you", "how many parameters do you have",
            "what is your size", "(tell me|what is) your number of parameters",
            "how many (weights|parameters) (has|does) (this|the demo) model (have|)",
        ),
        ("your parameters, how many are there", "how large a model are you"), 0.7,
    ),
    _fact(
        "skills", "podslice",
        "I can answer small questions about days, numbers, words, colors, animals, "
        "capital cities and Podslice.",
        "small questions",
        (
            "what can you do", "how can you help (me|)", "what do you know",
            "what (questions|things) can (I ask you|you answer)", "what are you (able to do|good at)",
            "help", "what are your skills", "(which|what) topics do you know", "can you help me",
        ),
        ("which sort of questions are you able to answer", "what are you useful for"),
    ),
)  # fmt: skip

PROGRAMMING = (
    _fact(
        "top languages", "programming",
        "Five popular programming languages are Python, JavaScript, Java, C++ and Go.",
        "Python, JavaScript, Java, C++ and Go",
        (
            "what are the top (5|five) (most popular|) programming languages",
            "(what|which) are the (best|most popular|most used) programming languages",
            "(list|name|give me|tell me) (5|five) (popular|) programming languages",
            "(list|name|give me) (some|a few) programming languages",
            "(list|name|give me|tell me) the top (5|five) programming languages",
            "(which|what) programming languages (are popular|do people use|should I learn)",
            "top (5|five) (programming|coding) languages", "what are some programming languages",
        ),
        (
            "which five programming languages do people use the most",
            "can you write down a few programming languages",
        ), 3.0,
    ),
    Relation(
        "language use", "programming",
        (
            "what is {topic} (used for|good for|for|)", "what (do|can) people use {topic} for",
            "tell me about {topic}", "why (do people|would I) use {topic}",
            "(what is the use of|what do you do with) {topic}",
        ),
        ("where would I use {topic}", "{topic} is a good choice for what"),
        "{topic} is used for {value}.",
        (
            {"topic": "Python", "value": "scripts, data and machine learning"},
            {"topic": "JavaScript", "value": "web pages"},
            {"topic": "Java", "value": "large business programs and Android"},
            {"topic": "C++", "value": "games and fast programs"},
            {"topic": "Go", "value": "servers and cloud tools"},
            {"topic": "Rust", "value": "safe and fast systems"},
            {"topic": "SQL", "value": "asking databases"},
            {"topic": "HTML", "value": "the structure of web pages"},
            {"topic": "Bash", "value": "commands in a terminal"},
        ), 1.6,
    ),
    Relation(
        "library use", "programming",
        (
            "what is {topic}", "what does {topic} do", "what is {topic} (used for|for)",
            "(explain|describe|tell me about) {topic}", "what does {topic} mean",
        ),
        ("I have never heard of {topic}, what is it", "how would you explain {topic} to me"),
        "{topic} is {value}.",
        (
            {"topic": "JAX", "value": "a Python library for fast array programs on accelerators"},
            {"topic": "Ray", "value": "a Python library for programs on many machines"},
            {"topic": "Ray Serve", "value": "a library for serving models on Ray"},
            {"topic": "Kubernetes", "value": "a system that runs containers on many machines"},
            {"topic": "KubeRay", "value": "a tool that runs Ray on Kubernetes"},
            {"topic": "GKE", "value": "Kubernetes as a service from Google Cloud"},
            {"topic": "a TPU", "value": "a chip for machine learning"},
            {"topic": "Stable Diffusion", "value": "a model that makes images from text"},
            {"topic": "a language model", "value": "a program that predicts the next word"},
            {"topic": "a token", "value": "a piece of text that a language model reads"},
        ), 1.6,
    ),
)  # fmt: skip

MANNERS = (
    _fact(
        "greeting", "manners", "Hello! How can I help you?", "hello",
        (
            "(hello|hi|hey|hi there|hello there|hey there|good morning|good evening|good day|greetings) "
            "(you|model|podslice|)",
        ),
        ("hello, model, nice to meet you", "a very good morning to you"), 1.5,
    ),
    _fact(
        "how are you", "manners", "I am fine, thank you. How can I help you?", "fine",
        (
            "(hello, |hi, |hey, |)how are you (today|doing|doing today|)", "how is it going",
            "(are you|how do you) (well|feel|doing well)", "how are things", "what's up",
        ),
        ("I hope that you are well, how are you", "how are you feeling today"),
    ),
    _fact(
        "thanks", "manners", "You are welcome!", "welcome",
        (
            "(thanks|thank you) (a lot|very much|so much|for your help|for the answer|)",
            "(great|ok|good|perfect), (thanks|thank you)", "that (helps|helped), (thanks|thank you)",
        ),
        ("many thanks, that was very good", "thank you for all of this"),
    ),
    _fact(
        "bye", "manners", "Goodbye!", "goodbye",
        (
            "(bye|goodbye|bye bye|see you|see you later|see you tomorrow|good night|farewell) (model|)",
            "(that is all|I have to go), (bye|goodbye)",
        ),
        ("I am leaving now, goodbye", "ok, see you next time"),
    ),
    _fact(
        "unknown", "manners", UNKNOWN, "do not know",
        (
            "who (won|will win) the (world cup|election|game|match|race) (last year|this year|)",
            "(write|tell me|compose) (a|me a) (poem|joke|song|novel|letter) (about|for) "
            "(love|dogs|rain|my boss|the sea|school)",
            "what is the (weather|news|temperature|traffic|score) (today|tomorrow|in Paris|here|now)",
            "(explain|describe|what is) (quantum physics|philosophy|gravity|evolution|relativity|democracy)",
            "who (is|was) (the president|the king of France|the author of that book|Napoleon|Shakespeare|Einstein)",
            "(translate|say) (hello|this|good morning) (to|in) (French|German|Korean|Spanish|Portuguese)",
            "what is the (price|cost) of (gold|a car|a house|bitcoin|a ticket)",
            "how (do|can) I (cook pasta|bake bread|lose weight|learn piano|fix my car|get rich)",
            "what (time|date) is it (now|today|)", "what is the meaning of life",
            "who (invented|discovered) (the telephone|radio|america|paper|the light bulb)",
            "when (was|did) the (war|first computer|moon landing|roman empire) (end|happen|start)",
            "what is the population of (China|Paris|the world|India)",
            "(recommend|suggest) (a|some) (book|film|movie|music|restaurant)",
            "(why|how) (is|does) the (sky|sun|moon|sea|earth) (blue|shine|move|work)",
        ),
        (
            "what will the weather be like next week",
            "please compose a long poem about the moon",
        ), 2.0,
    ),
)  # fmt: skip

RELATIONS = PROJECT + PROGRAMMING + MANNERS
