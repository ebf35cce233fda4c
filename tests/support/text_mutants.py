"""Random changes of a text in a formal language: of its tokens, their places and their numbers."""

import re

TOKEN = re.compile(r"\s+|[\w%.$]+|.", re.S)
EDGES = tuple(
    """
    0 -1 1 2 3 7 31 32 255 65536 2147483647 2147483648 4294967295 4294967296 9223372036854775807
    18446744073709551615 1e999 1.5 99999999999999999999999 0x7fffffff 0xffffffffffffffff 08 NaN
    null true
""".split()
)
MARKS = (*'{}[]();:,|!@<>=+-/*"\\_\0\n', "//", "/*", "*/", "\u0660", "\x1b[2J", "\U0001f600")


def mutated(text, rng):
    """The text after one to three changes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        tokens = TOKEN.findall(text)
        places = [n for n, token in enumerate(tokens) if not token.isspace()]
        at, other = rng.choice(places), rng.choice(places)
        change = rng.randrange(9)
        if change == 0:
            del tokens[at]
        elif change == 1:
            del tokens[at : at + rng.randrange(1, 20)]
        elif change == 2:
            tokens[at] = tokens[other]
        elif change == 3:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif change == 4:
            tokens.insert(at, rng.choice(MARKS))
        elif change == 5:
            tokens[at] = rng.choice(MARKS + EDGES)
        elif change == 6:
            tokens[at:at] = tokens[other : other + rng.randrange(1, 20)]
        elif change == 7:
            numbers = [n for n in places if re.fullmatch(r"\d[\w.]*", tokens[n])] or places
            tokens[rng.choice(numbers)] = rng.choice(EDGES)
        else:
            words = tokens[at].split(".")  # a modifier more, less or moved
            words.insert(rng.randrange(len(words) + 1), rng.choice(tokens[other].split(".")))
            del words[rng.randrange(len(words))]
            tokens[at] = ".".join(words)
        text = "".join(tokens) or "0"
    return text
