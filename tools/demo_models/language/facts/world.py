"""Facts of the everyday world: units, colors, animals and capital cities."""

from __future__ import annotations

from tools.demo_models.language.facts.dates import ORDINALS
from tools.demo_models.language.facts.phrasing import listed
from tools.demo_models.language.facts.relations import Relation, a, each, pairs, table

PLANETS = listed("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")

COUNTS = table(
    "value part parts whole a_whole",
    """
    seven, day, days, week, a week
    twelve, month, months, year, a year
    four, season, seasons, year, a year
    fifty-two, week, weeks, year, a year
    sixty, minute, minutes, hour, an hour
    sixty, second, seconds, minute, a minute
    twenty-four, hour, hours, day, a day
    one hundred, year, years, century, a century
    ten, year, years, decade, a decade
    one hundred, centimeter, centimeters, meter, a meter
    ten, millimeter, millimeters, centimeter, a centimeter
    one thousand, meter, meters, kilometer, a kilometer
    one thousand, gram, grams, kilogram, a kilogram
    twelve, inch, inches, foot, a foot
    three, foot, feet, yard, a yard
    one hundred, cent, cents, dollar, a dollar
    one thousand, milliliter, milliliters, liter, a liter
    twelve, egg, eggs, dozen, a dozen
    eight, bit, bits, byte, a byte
    twenty-six, letter, letters, alphabet, the alphabet
    eight, planet, planets, solar system, the solar system
    seven, color, colors, rainbow, a rainbow
    five, finger, fingers, hand, a hand
    """,
)
SIDES = table(
    "value shape",
    """
    three, triangle
    four, square
    four, rectangle
    five, pentagon
    six, hexagon
    eight, octagon
    """,
)
CAPITALS = table(
    "country value",
    """
    France, Paris
    Germany, Berlin
    Italy, Rome
    Spain, Madrid
    Portugal, Lisbon
    Greece, Athens
    Austria, Vienna
    Poland, Warsaw
    Ireland, Dublin
    Norway, Oslo
    Sweden, Stockholm
    Finland, Helsinki
    Denmark, Copenhagen
    Belgium, Brussels
    Hungary, Budapest
    Japan, Tokyo
    China, Beijing
    India, New Delhi
    South Korea, Seoul
    Egypt, Cairo
    Kenya, Nairobi
    Canada, Ottawa
    Cuba, Havana
    Peru, Lima
    Chile, Santiago
    Argentina, Buenos Aires
    Russia, Moscow
    Turkey, Ankara
    England, London
    Thailand, Bangkok
    """,
)
THINGS = pairs(
    "thing value",
    "grass green; snow white; coal black; blood red; milk white; lemons yellow; bananas yellow; "
    "tomatoes red; carrots orange; pumpkins orange; chocolate brown; emeralds green; "
    "strawberries red; coffee brown; plums purple; salt white; frogs green; "
    "flamingos pink; elephants gray; cucumbers green; cherries red; ravens black",
)
MIXES = pairs(
    "one two value",
    "red yellow orange; blue yellow green; red blue purple; red white pink; black white gray; red green brown",
)
SOUNDS = pairs(
    "animal value",
    "dog barks; cat meows; cow moos; sheep bleats; horse neighs; duck quacks; lion roars; "
    "pig oinks; wolf howls; bee buzzes; snake hisses; owl hoots; frog croaks; mouse squeaks; "
    "rooster crows; bird chirps; donkey brays; elephant trumpets",
)
YOUNG = pairs(
    "animal value",
    "dog puppy; cat kitten; cow calf; sheep lamb; horse foal; duck duckling; lion cub; "
    "pig piglet; goat kid; hen chick; frog tadpole; deer fawn; kangaroo joey; goose gosling; "
    "swan cygnet; owl owlet",
)
LEGS = pairs(
    "animal value",
    "dog four; cat four; cow four; horse four; sheep four; spider eight; ant six; bee six; "
    "duck two; hen two; snake zero; fly six; owl two; lion four; fish zero",
)

UNITS = (
    Relation(
        "parts", "units",
        (
            "how many {parts} (are|are there|do we have|do you find|can you count) in {a_whole}",
            "how many {parts} (does|has) {a_whole} (have|)",
            "how many {parts} (make|make up|form) {a_whole}",
            "(what is|tell me|give me|say) the number of {parts} in {a_whole}",
            "{a_whole} has how many {parts}",
            "in {a_whole} there are how many {parts}",
            "how many {parts} (per|for each|in one) {whole}",
            "{parts} in {a_whole}",
            "count (of|the) {parts} in {a_whole}",
            "(one|a single) {whole} is how many {parts}",
            "what number of {parts} is in {a_whole}",
            "do you know how many {parts} are in {a_whole}",
            "I have one {whole}. how many {parts} is that",
            "there are how many {parts} in {a_whole}",
            "how many {parts} are in (one|each|every) {whole}",
        ),
        (
            "if you count the {parts} of {a_whole}, how many are there",
            "{a_whole} consists of how many {parts}",
            "one {whole} contains how many {parts}",
            "how many {parts} would I find in {a_whole}",
            "what's the number of {parts} making up one {whole}",
        ),
        "There are {value} {parts} in {a_whole}.", COUNTS, 3.0,
        noun=(
            "the number of {parts} in {a_whole}|how many {parts} there are in {a_whole}|"
            "how many {parts} {a_whole} has|how many {parts} make {a_whole}|"
            "the number of {parts} per {whole}"
        ),
    ),
    Relation(
        "sides", "units",
        (
            "how many (sides|corners|angles) (does|has|are in|are there in) (a|the) {shape} (have|)",
            "(what is|tell me) the number of (sides|corners|angles) of (a|the) {shape}",
            "a {shape} has how many (sides|corners|angles)",
            "(how many|count the) sides of a {shape}",
            "how many sides (make|form) a {shape}",
        ),
        (
            "one {shape} comes with how many sides",
            "if I draw a {shape}, how many corners do I get",
        ),
        "A {shape} has {value} sides.",
        each(SIDES),
        noun=(
            "the number of sides of a {shape}|how many sides a {shape} has|"
            "the number of corners of a {shape}|how many corners there are in a {shape}"
        ),
    ),
)  # fmt: skip

COLORS = (
    Relation(
        "color of", "colors",
        (
            "what (color|colour) (are|is|has|have) {thing}",
            "what is the (color|colour) of {thing}",
            "which (color|colour) (do|does) {thing} have",
            "what (color|colour) (do|does) {thing} have",
            "(tell me|name|say|give me) the (color|colour) of {thing}",
            "{thing} (is|are|has|have) (what|which) (color|colour)",
            "of (what|which) color (is|are) {thing}",
            "(what|which) color (would|do) you (paint|draw) {thing}",
            "the (color|colour) of {thing} is (what|which)",
        ),
        (
            "if I look at {thing}, what color do I see",
            "{thing} usually comes in which color",
            "which color would {thing} be",
        ),
        "The color of {thing} is {value}.", THINGS, 1.3,
        noun=(
            "the color of {thing}|the usual color of {thing}|the colour that {thing} have|"
            "what color {thing} is|the color {thing} comes in"
        ),
    ),
    Relation(
        "color mix", "colors",
        (
            "what (color|colour) do you get (when|if) you mix {one} and {two}",
            "what (do you get|is made|happens) (when|if) you mix {one} (and|with) {two}",
            "(mix|mixing|combine) {one} and {two} (gives|makes|to get) (what|which) color",
            "{one} (and|plus|mixed with) {two} (makes|gives|is) (what|which color)",
            "which color (is|comes from) a mix of {one} and {two}",
            "what do {one} and {two} make",
            "what color do {one} and {two} (make|give) (together|)",
            "what color is {one} mixed with {two}",
        ),
        (
            "I blend {one} paint with {two} paint, what color comes out",
            "which color results from {one} together with {two}",
        ),
        "Mixing {one} and {two} gives {value}.",
        MIXES + tuple(row | {"one": row["two"], "two": row["one"]} for row in MIXES), 1.3,
        noun=(
            "the mix of {one} and {two}|the color made from {one} and {two}|"
            "what {one} and {two} make|the color that comes from mixing {one} with {two}|"
            "{one} paint and {two} paint together"
        ),
    ),
)  # fmt: skip

ANIMALS = (
    Relation(
        "sound", "animals",
        (
            "what (sound|noise) does {a_animal} make",
            "(which|what) (sound|noise) does every {animal} make",
            "what does {a_animal} (say|do when it makes a sound)",
            "how does {a_animal} sound",
            "(tell me|name|what is) the (sound|noise) (of|made by) {a_animal}",
            "{a_animal} makes (what|which) (sound|noise)",
            "what is the sound that {a_animal} makes",
            "what noise do you hear from {a_animal}",
            "the sound of {a_animal} is (what|which)",
        ),
        (
            "when {a_animal} makes noise, what does it do",
            "which sound would I hear from {a_animal}",
            "what's the typical noise of {a_animal}",
        ),
        "{a_animal} {value}.", each(SOUNDS, a_animal=lambda row: a(row["animal"])),
        noun=(
            "the sound of {a_animal}|the noise of {a_animal}|the sound {a_animal} makes|"
            "what {a_animal} sounds like|the noise that {a_animal} makes"
        ),
    ),
    Relation(
        "young", "animals",
        (
            "what is (a baby|a young|the baby of a|the young of a) {animal} (called|)",
            "what do you call (a baby|a young|the young of a) {animal}",
            "(what is|tell me|give me) the (name|word) (of|for) (a baby|a young) {animal}",
            "how do you call a (baby|young|little) {animal}",
            "a (baby|young) {animal} is (called what|called|a what)",
            "the (young|baby) of {a_animal} is called what",
            "how do people call the young of {a_animal}",
            "name the (young|baby) of {a_animal}",
        ),
        (
            "which word do we use for a baby {animal}",
            "people call a very young {animal} what",
            "a {animal} that was just born is called",
        ),
        "A baby {animal} is called {a_value}.",
        each(YOUNG, a_animal=lambda row: a(row["animal"]), a_value=lambda row: a(row["value"])),
        noun=(
            "the name of a baby {animal}|the word for a young {animal}|"
            "the young of {a_animal}|a baby {animal}|what a young {animal} is called|"
            "the name of {a_animal} when it is born"
        ),
    ),
    Relation(
        "legs", "animals",
        (
            "how many legs (does|has) {a_animal} (have|)",
            "how many legs (are on|are there on) {a_animal}",
            "(what is|tell me) the number of legs of {a_animal}",
            "{a_animal} has how many legs",
            "on how many legs does {a_animal} (walk|stand)",
            "(how many|count the) legs of {a_animal}",
        ),
        ("if I count the legs of {a_animal}, how many are there", "{a_animal} walks on how many legs"),
        "{a_animal} has {value} legs.", each(LEGS, a_animal=lambda row: a(row["animal"])),
        noun=(
            "the number of legs of {a_animal}|how many legs {a_animal} has|"
            "the count of legs on {a_animal}|how many legs {a_animal} walks on"
        ),
    ),
)  # fmt: skip

GEOGRAPHY = (
    Relation(
        "capital", "capitals",
        (
            "what is the capital (city|) of {country}",
            "(which|what) city is the capital of {country}",
            "(name|tell me|give me|say) the capital (city|) of {country}",
            "{country} has (what|which) capital (city|)",
            "what is {country}'s capital (city|)",
            "the capital of {country} is (what|which city|called what)",
            "(which|what) is the capital city of {country}",
            "capital of {country}",
            "what city is the capital of {country}",
            "do you know the capital of {country}",
            "what capital (does|has) {country} (have|)",
        ),
        (
            "which city serves as the capital of {country}",
            "{country}: what is its capital",
            "in {country}, what city is the capital",
        ),
        "The capital of {country} is {value}.", CAPITALS, 1.5,
        noun=(
            "the capital of {country}|the capital city of {country}|{country}'s capital|"
            "{country}'s capital city|which city is the capital of {country}|"
            "the city that is the capital of {country}"
        ),
    ),
    Relation(
        "country of capital", "capitals",
        (
            "{value_city} is the capital of (which|what) country",
            "of (which|what) country is {value_city} the capital",
            "(which|what) country has {value_city} as (its|the) capital",
            "(which|what) country has the capital {value_city}",
            "{value_city} is the capital of (what|which)",
            "(name|tell me) the country (whose capital is|with the capital) {value_city}",
        ),
        ("which country's capital is {value_city}", "{value_city} is which country's capital city"),
        "{value_city} is the capital of {value}.",
        tuple({"value_city": row["value"], "value": row["country"]} for row in CAPITALS),
        noun=(
            "the country whose capital is {value_city}|"
            "the country with the capital {value_city}|"
            "the country that has {value_city} as its capital|"
            "which country {value_city} is the capital of"
        ),
    ),
    Relation(
        "planet", "capitals",
        (
            "(what|which) (is the|planet is the|planet is) {nth} planet (from the sun|)",
            "(name|tell me|give me) the {nth} planet (from the sun|)",
            "(what|which) planet (is|comes) {nth} (from the sun|)",
            "the {nth} planet (from the sun|) is (what|which|called what)",
        ),
        ("counting from the sun, which planet is the {nth} one", "how is the {nth} planet called"),
        "The {nth} planet from the sun is {value}.",
        tuple(
            {"nth": nth, "value": planet}
            for nth, planet in zip(ORDINALS, PLANETS, strict=False)
        ), 0.7,
        noun=(
            "the {nth} planet|the {nth} planet from the sun|the planet that comes {nth}|"
            "planet number {nth} counting from the sun"
        ),
    ),
)  # fmt: skip

WORLD = UNITS + COLORS + ANIMALS + GEOGRAPHY
