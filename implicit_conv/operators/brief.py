"""Three lines that begin `explain` on every engine: what runs, how long it takes, and why it."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def brief(facts: Facts) -> str:
    """The lines "runs", "takes" and "why" for the facts of a plan."""
    rows = {"runs": _runs(facts), "takes": _takes(facts), "why": _why(facts)}
    return "\n".join(f"{name:12}{text}" for name, text in rows.items())


def _runs(facts: Facts) -> str:
    parts = _parts(facts)
    if len(parts) > 1:
        return f"{len(parts)} convolutions in turn; the longest by {_longest(facts)['kernel']}"
    return str(parts[0]["kernel"])


def _takes(facts: Facts) -> str:
    seconds, threads = facts["milliseconds"] / 1e3, facts["threads"]
    where = facts["device"] if threads is None else f"{threads} thread{'s' * (threads > 1)}"
    text = f"about {1e3 * seconds:.3f} ms on {where}, by estimate"
    if not seconds:
        return text
    text += f": {facts['flops'] / seconds / 1e9:.0f} GFLOP/s"
    if facts["peak"] is None:
        return text
    source = "measured here" if facts["peak_is_measured"] else "by the nominal clock"
    share, peak = facts["flops"] / seconds / facts["peak"], facts["peak"] / 1e9
    return f"{text}, {share:.0%} of a direct sum's limit of {peak:.0f}, {source}"


def _why(facts: Facts) -> str:
    part = _longest(facts)
    if part["tuned"]:
        return str(part["tuned"])
    others = part["candidates"][1:]
    if part["asked"]:
        return "the algorithm was asked for by name"
    if not others:
        return "no other candidate supports this problem"
    best, other = part["milliseconds"], min(others, key=lambda each: float(each["milliseconds"]))
    longer = other["milliseconds"] / best if best else 1.0
    which = " for the longest one" if len(_parts(facts)) > 1 else ""
    return (
        f"the next best{which} is {other['kernel']}: about {other['milliseconds']:.3f} ms, "
        f"{longer:.2f} times as long"
    )


def _longest(facts: Facts) -> Facts:
    """The facts of the part that takes longest, or of a plan that has no parts."""
    return max(_parts(facts), key=lambda part: float(part["milliseconds"]))


def _parts(facts: Facts) -> list[Facts]:
    """The facts of all convolutions that have no parts themselves."""
    found = [each for part in facts["parts"] for each in _parts(part)]
    return found or [facts]
