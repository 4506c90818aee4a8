"""Words for keys and lists, and the sentences of a haystack without meaning."""

from __future__ import annotations

import string
from random import Random


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


ADJECTIVES = _split(
    """able aged amber ample ancient arid bare bent big bitter black bland bleak blind blue bold
    brave brief bright brisk broad bronze brown busy calm careful cheap chief clean clear clever
    close cold cool coral cosy crisp cruel curly curved damp dark dear deep dense dim dry dull
    dusty eager early earnest easy empty equal even exact faint fair fast feeble fierce fine firm
    flat fond free fresh frozen full funny gentle giant glad gold good grand great green grey grim
    happy hard harsh heavy high hollow honest hot huge humble icy idle jolly keen kind large late
    lazy lean light little lively lone long loose loud low loyal lucky mad major mellow mild minor
    modest narrow neat new nimble noble odd old open pale plain polite poor prime proud pure quick
    quiet rapid rare raw ready red rich ripe rough round royal rude rusty sad safe sharp short shy
    silent silver simple slim slow small smart smooth soft solid sour stable steep stiff still
    strict strong sudden sunny sure sweet swift tall tame tense thick thin tidy tiny tired tough
    true vast vivid warm weak weary wet white wide wild wise young"""
)
NOUNS = _split(
    """acorn actor apple arch arrow attic badge baker basin basket beach bean bear bell bench berry
    bird blade boat bone book boot bottle bowl box branch bread brick bridge brook broom brush
    bucket bush button cabin cable cake camel camp candle canoe card carpet cart castle cave cedar
    chain chair chalk cherry chest church city clay cliff clock cloth cloud coast coat coin comb
    corn couch cow crane crow crown cup curtain dam deer desk dish ditch dog donkey door dove drum
    duck eagle ear edge egg elbow elm engine fan farm feather fence fern field fig finch fire fish
    flag flame flask flute foot forest fork fort fox frog garden gate glass glove goat goose grain
    grape grass hall hammer harbor hat hawk hay hedge hen hill hook horn horse house island ivy
    jacket jar judge kettle key king kite knee knife knot ladder lake lamb lamp lane leaf lemon
    letter lily lion lizard lock maple market mask meadow melon mill mirror moon moth mountain
    mouse nail needle nest net oak oar olive onion orange orchard otter oven owl paddle page palm
    paper park path pear pearl pebble pen pencil pepper piano pie pig pillow pine pipe plate plum
    pond pony pot prince pump queen rabbit rail rain ring river road robin roof root rope rose sail
    salt sand saw scarf school seal seed shed sheep shell ship shirt shoe shore shovel snail snow
    sock spade spoon spring squirrel stable stair star stone stool storm stove straw stream street
    sword table tail tailor temple tent thorn thread throne tiger toad tower town trail train tree
    trout truck trumpet tulip tunnel turtle valley vase village vine violin wagon wall walnut
    watch well whale wheat wheel willow window wing wolf wood yard"""
)

NOISE = (
    " The river is wide.",
    " The hill is green.",
    " The wind is cold.",
    " The road is long.",
    " On and on we go.",
)
"""Sentences that are repeated to make a haystack without information."""


def compound(rng: Random) -> str:
    """Draw a word such as `quiet-river`, one of more than fifty thousand."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def compounds(rng: Random, count: int) -> list[str]:
    """Draw different words of `compound` in random order, at most all of them."""
    total = len(ADJECTIVES) * len(NOUNS)
    chosen = rng.sample(range(total), min(count, total))
    return [f"{ADJECTIVES[i // len(NOUNS)]}-{NOUNS[i % len(NOUNS)]}" for i in chosen]


def letters(rng: Random, count: int, alphabet: str = string.ascii_uppercase) -> str:
    """Draw a word of letters without a meaning."""
    return "".join(rng.choice(alphabet) for _ in range(count))


def number(rng: Random) -> str:
    """Draw a number of seven digits."""
    return str(rng.randint(1_000_000, 9_999_999))


def identifier(rng: Random) -> str:
    """Draw a random UUID (version 4)."""
    digits = f"{rng.getrandbits(128):032x}"
    version, variant = "4", "89ab"[int(digits[16], 16) % 4]
    digits = digits[:12] + version + digits[13:16] + variant + digits[17:]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
