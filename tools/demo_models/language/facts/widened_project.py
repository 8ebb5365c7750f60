"""Further training phrasings about Podslice, the model itself, programming in general, and polite phrases."""

from __future__ import annotations

_IT = "(podslice|the server|the service|this project|it)"
_THE = "(podslice|this project|the project|the podslice project)"
_I = "(I|we|you|one|people)"

MORE: dict[str, tuple[str, ...]] = {
    "what is podslice": (
        f"what (is|are) {_THE} (about|made for|meant for|there for|supposed to do|useful for)",
        f"why (would|should|do) {_I} (use|want|need|choose) {_THE}",
        f"what (would|can|could|do) {_I} (use|do with|need) {_THE} (for|)",
        "(I|we) (do not know|don't know|know nothing about|am new to|just found|just heard of|have not heard of|"
        "never used) podslice, (what is it|what does it do|what is that|tell me more)",
        "(give me|write|I need|show me) (an overview|a summary|a description|an explanation|a short description) of "
        "podslice",
        "(what kind of|what sort of) (software|project|tool|program) is podslice",
        "podslice is (what|a project for what|software for what)",
        "(could|can|would) you (describe|introduce|present) podslice",
        "what is the (goal|idea|aim|job|use|point) of podslice", "podslice, what is (it|that)",
    ),
    "podslice word": (
        "what is (the definition|the sense) of (a podslice|the word podslice|podslice)", "(a|one) podslice is what",
        "a podslice, what is that",
        "what do (you|we) (mean|understand) (by|with) (podslice|a podslice|the word podslice)",
        "the word podslice means (what|)", "what does (a|the word) podslice (stand for|refer to|describe)",
        "where does the (word|name) podslice come from", "why is it called podslice",
        "what (counts as|makes) a podslice", "what kind of thing is a podslice",
    ),
    "start": (
        f"(what|which command) (do|should|must|can) {_I} (type|run|enter|use) to (get|bring) {_IT} (up|running|"
        "started|going|to run|to start)",
        f"(I|we) (want|need|would like|am trying) to (start|run|launch|get started with|bring up) {_IT}, (what do I "
        "do|how|what do I type|what is the command|what do I run)",
        f"how (can|could|do|would|should|might) {_I} (get|bring) {_IT} (up|running|started|going|to start|to run)",
        f"what (starts|launches|runs|brings up|makes) {_IT} (start|run|)",
        "(what is|give me|show me|tell me|I need) the (command|way|step) (to start|to run|to launch|for starting|"
        f"that starts) {_IT}",
        f"{_IT} is started (how|with what|with which command)", "(start|launch|run) podslice",
        f"how does {_IT} (start|get started)", "how do I begin (with podslice|)", "how to serve (the|a) model",
    ),
    "port": (
        f"{_IT} (is|runs|listens|answers|waits) on (which|what) port",
        f"(which|what) port (number|) (is|does|should|must|will) {_IT} (use|using|have|listen on|run on|open|take|"
        "on)",
        "(to|at|on) (which|what) port (do|should|can|must) (I|we|my client|the client|my browser) (connect|send "
        "requests|go|call|send) (to|)",
        "(which|what) port (number|) (should|must|do|can) (I|we|my client|clients|my browser|my program) (connect "
        "to|use|open|call|take|talk to)",
        f"(the|) port (number|) (of|for) {_IT} (is|)",
        f"(where|at which port|on what port) (can|do) (I|we) (reach|find|call) {_IT}",
        f"I (need|want) the port (number|) (of|for) {_IT}",
    ),
    "ask": (
        "(how|with what|with which script|with which command) (can|do|could|should|would) (I|we|one) (send|give|"
        "pass) (a|my|the) (question|prompt|request) to (the model|the server|podslice|it)",
        "(the server|it|podslice) (is running|has started|runs|is ready), how (do|can) (I|we) (ask something|send a "
        "question|ask it a question|use it|talk to it|call it|query it)",
        "(which|what) (script|program|command|client|tool) (do|should|can) (I|we) (use|run|type) to (ask|query|call|"
        "talk to|send a question to|send prompts to) (the model|the server|podslice|it)",
        "(I|we) (want|need|would like) to (ask|query|call|talk to) (the model|the server|podslice), (how|what do I "
        "run|what do I type|which script)",
        "(what is|show me|tell me|I need) the (command|script|way) (to ask|to query|for asking|that asks) (the "
        "model|the server|it) (a question|)",
        "how does one (ask|query|prompt|talk to) (the model|the server)",
    ),
    "test": (
        "(I|we) (changed|edited|wrote|fixed) (something|code|a file), how (do|can) (I|we) (test it|run the tests|"
        "see if the tests pass|test that|know that it works)",
        "(the tests|tests|the unit tests|the test suite) (are|is) (run|started|launched) (how|with which command|"
        "with what)",
        f"how (can|do|could|should|would|does) {_I} (run|start|launch|execute|check|try) (all|) (the|) (tests|unit "
        "tests)",
        f"how do I (check|know|see|make sure) that {_IT} works",
        "(what is|give me|show me|tell me|I need) the (command|way) (to test|to run the tests|to run tests|that "
        "runs the tests|to start the tests)",
        "(I|we) (want|need) to (run|start) the tests, (how|what do I type|what do I run)",
        "(test|check) (the project|podslice)", "which command (starts|launches|executes) the tests",
    ),
    "license": (
        f"{_THE} (is|comes|ships|was released|is published) under (what|which) license",
        f"(which|what) (kind of|sort of|) license (is|has|does|covers|applies to) {_THE} (under|have|use|)",
        f"(what are|tell me|show me) the (license|licensing|legal) (terms|conditions|rules) (of|for) {_THE}",
        f"(may|can|am I allowed to) (I|) (use|copy|change|sell|share) {_THE}", f"the license (of|for) {_THE} (is|)",
        f"is {_THE} (free|open|free to use)", f"does {_THE} have a license", f"who may use {_THE}",
        f"(under|with) (what|which) license (can|may) (I|we) use {_THE}",
    ),
    "runs on": (
        "(what|which) (kind of|sort of|type of|) (hardware|machine|machines|computers|chips|accelerators) (is|was|"
        f"are|does|do) {_THE} (made for|meant for|built for|need|want|run on|support|designed for)",
        f"(where|on what|on which machines) (can|could|do|should|would) {_I} (run|deploy|install|use) {_THE}",
        f"{_THE} (needs|uses|supports|is made for|works on) (what|which) (hardware|machines|chips)",
        f"(on|for) (what|which) (machines|hardware|chips|computers) (is|does|can) {_THE} (made|run|work|for)",
        f"does {_THE} (work|run) (on a laptop|on tpus|in the cloud|on my machine)",
        f"(which|what) (cloud|computer|machine) do I need for {_THE}",
    ),
    "built with": (
        f"{_THE} (is built|is made|is written|builds|was made|was built|depends|stands|relies) (on|with|in|from|of) "
        "(what|which libraries|which software|which tools|which frameworks)",
        "(what|which) (software|libraries|library|frameworks|framework|tools|languages|packages) (is|are|was|does|"
        f"do) {_THE} (made of|made from|made with|built on|built from|use|using|based on|depend on|need|written in)",
        "(what|which) (software|libraries|tools|frameworks) (make|is behind|are behind|drive|power|are inside) "
        f"{_THE}",
        f"(what is|what are) (behind|inside|under) {_THE}",
        f"(with|on|from) (what|which libraries|which tools) (is|was) {_THE} (built|made|written)",
    ),
    "who are you": (
        "(what|which) (sort|kind|type) of (thing|program|model|machine|assistant|bot|ai) (are you|is this|am I "
        "talking to)",
        "who (is|am I|is it that I am) (talking|speaking|writing|chatting) (to|with|here|to here)",
        "who (is answering|answers|is writing|writes|is this|is there|is speaking) (me|here|my questions|)",
        "(do you have|have you got) a name",
        "what (model|bot|program|assistant) (are you|is this|answers me|is answering)",
        "(I want to know|I would like to know|I wonder|tell me|please tell me) (who|what) you are",
        "(could|can|would) you (introduce|describe) yourself", "your name is what", "you are (who|what)",
        "(what's|what is) your name (please|)",
    ),
    "size": (
        "(your|the) (parameters|weights), how many (are there|do you have|are they)",
        "how (large|big|small) (a model|of a model) are you", "how (large|big|small) is (this|the demo) model",
        "you have how many (parameters|weights)",
        "(tell me|say|I want to know) how (many parameters you have|big you are|large you are)",
        "(what is|what's) the (size|number of parameters) of (this|the demo) model",
        "how many (parameters|weights) (are in|are there in|make up|do you consist of) (you|this model|the model|)",
    ),
    "skills": (
        "(which|what) (sort|kind|type|kinds|sorts) of (questions|things|tasks) (can|could|do|are) you (answer|able "
        "to answer|know|do|understand|help with|good at)",
        "(which|what) (questions|topics|things|tasks) (can|could|do|are) you (answer|able to answer|know about|do|"
        "understand|help me with|useful for|good for)",
        "what (are you|is this model|is this bot) (useful|good|made|there|meant|trained) for",
        "(what|which things) (may|can|could|should|might) (I|we) ask (you|here|this model|)",
        "(tell me|show me|I want to know) what you (can do|know|are able to do)",
        "(how|in what way|with what) (can|could) you (help|be useful|assist) (me|)",
        "what do you (do|know about|understand)",
    ),
    "top languages": (
        "(which|what) (five|5|few|) (programming languages|coding languages|languages for programming) (are|do|"
        "should|can) (the|people|I|programmers|most) (popular|use|used|learn|like|use most|use the most|most used)",
        "(can|could|would) you (name|list|write|tell me|give me|write down) (five|5|some|a few|the top 5|the top "
        "five|) (popular|) programming languages",
        "(I need|I want|write down|write|show|show me) (five|5|some|a few|a list of) (popular|common|) programming "
        "languages",
        "(the|a|your) (list of|) (top|best|most popular|main) (5|five|) programming languages",
        "what programming languages (are there|exist|do you know|can you name)",
        "(which|what) are (five|some|a few|the top five|the top 5) (popular|) programming languages",
        "popular programming languages",
    ),
    "greeting": (
        "(hello|hi|hey|good morning|good evening|good afternoon|good day), (model|you|my friend|podslice|dear model|"
        "everyone|nice model|all)",
        "(hello|hi|hey), (nice|good|great|glad) to (see|meet|talk to|have) you (here|)",
        "(nice|good|great) to (meet|see|talk to) you",
        "(a|I wish you a) (very|) (good|nice|happy|lovely) (morning|day|evening|afternoon) (to you|model|to you all|"
        ")",
        "(hello|hi|hey) (again|everyone|friend|my friend|to you|dear model)",
        "(hello|hi), (I am here|I am back|here I am|are you there)", "(I say|just saying) (hello|hi)",
    ),
    "how are you": (
        "(I hope|hope) (that|) you are (well|fine|ok|good), how are you",
        "how (are you|do you) (feel|feeling|doing) (today|now|this evening|right now|)",
        "(and|so|hello, and|hi, and) how are you", "(is everything|are things|all) (ok|fine|good|well) (with you|)",
        "how (is|was) (your day|life|everything|it going) (so far|with you|)",
        "are you (ok|fine|well|good|all right) (today|)", "how (have you been|do you do)",
    ),
    "thanks": (
        "(many|a thousand|lots of) thanks (to you|for that|for this|model|my friend|)",
        "(thanks|thank you) for (that|this|everything|all|all of that|the help|your answer|your time|being so kind|"
        "explaining)",
        "(thanks|thank you|many thanks), (that was|this was|it was|you were|you are) (good|great|very good|helpful|"
        "useful|perfect|kind|very kind|nice)",
        "(that was|this was|you were|you are) (very|so|really|) (helpful|useful|kind|nice), (thanks|thank you)",
        "I thank you (very much|for your help|)", "(I am|we are) (grateful|thankful) (to you|for this|)",
        "(thanks|thank you) (model|again|my friend)",
    ),
    "bye": (
        "(I am|I'm) (leaving|going|off|done) (now|for today|), (goodbye|bye|bye bye|see you|see you soon)",
        "(ok|so|well|right), (bye|goodbye|see you|see you soon|see you next week|see you then|until tomorrow)",
        "(goodbye|bye|see you) (for now|then|my friend|everyone|and thanks|again|soon|next week)",
        "(I have|I need|it is time) to (go|leave|sleep) (now|), (bye|goodbye|see you)",
        "until (tomorrow|next time|later|then)", "have a (good|nice) (day|night|evening), (bye|goodbye)",
        "(that was all|that's it|I am finished), (bye|goodbye)",
    ),
    "unknown": (
        "(how|what) (is|was|will) the weather (be|be like|like|) (today|tomorrow|here|in London|this week|this "
        "evening|next month|on Monday|in spring|)",
        "will it (rain|snow|be sunny|be warm|be cold) (today|tomorrow|this week|on Friday)",
        "(please|can you|could you|I want you to) (write|tell me|compose|invent|make up) (a|a short|a long|a funny|"
        "a sad) (poem|story|joke|song|letter|tale|essay) (about|on|for) (a cat|the sea|my mother|love|a king|summer|"
        "the stars|a house|two friends|my garden)",
        "(what|how) do you think (about|of) (love|politics|the war|music|god|football|my work)",
        "who is (your maker|the best singer|the richest man|the pope|my neighbor|Mozart|Caesar)",
        "how (old|tall|rich|far) is (the president|the moon|my father|Mount Everest|the queen|the universe)",
        "(give me|I need|find me) (a recipe|a phone number|an address|a doctor|a hotel|a job|the news)",
        "(solve|help me with) (this equation|my homework|my taxes|my essay)",
        "(fix|debug|write|review) (this|my|a) (code|program|function|script|website)",
        "(what|which) (film|book|song|game|team|food|wine) (is|do you find) (the|) (best|nicest|worst)",
        "why (do|are|did) (people|birds|cats|stars|leaves|fish) (sleep|fly|shine|fall|sing|dream)",
    ),
}  # fmt: skip
"""Templates by the name of the relation that they ask about."""
