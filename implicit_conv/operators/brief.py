"""Three lines that begin `explain` on every engine: what runs, how long it takes, and why it."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def brief(facts: Facts) -> str:
    """The lines "runs", "takes" and "why" for the facts of a plan."""
    rows = {"runs": facts["kernel"], "takes": _takes(facts), "why": _why(facts)}
    return "\n".join(f"{name:12}{text}" for name, text in rows.items())


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
    if facts["tuned"]:
        return str(facts["tuned"])
    best, *others = facts["candidates"]
    if facts["asked"]:
        return "the algorithm was asked for by name"
    if not others:
        if facts["parts"]:
            longest = max(facts["parts"], key=lambda part: float(part["milliseconds"]))
            return f"no other way computes it; of its longest part, {_why(longest)}"
        return "no other candidate supports this problem"
    own, other = best["milliseconds"], min(others, key=lambda each: float(each["milliseconds"]))
    longer = other["milliseconds"] / own if own else 1.0
    return (
        f"the next best is {other['kernel']}: about {other['milliseconds']:.3f} ms, "
        f"{longer:.2f} times as long"
    )
