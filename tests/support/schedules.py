"""Schedules of threads that make one step at a time: the usual one, and those that deviate from it.

One thread makes steps until it waits or ends, then the next one does; a delay is a step at which
something else is chosen. All runs with few delays are tried (Emmi, Qadeer and Rakamaric,
"Delay-bounded scheduling", POPL 2011).
"""


def delayed(delays, choices):
    """A choice that lets the current thread go on, but for `delays`: {step: choice}. It adds to
    `choices` what else it could have chosen in each step.
    """

    def choose(ready, current):
        usual = current if current in ready else ready[0]
        chosen = delays.get(len(choices), usual)
        choices.append([other for other in ready if other != usual])
        return chosen

    return choose


def runs_with(count, delays, make):
    """Try all runs with `count` further delays after those in `delays`; return how many."""
    choices = []
    make().go(delayed(delays, choices))
    if count == 0:
        return 1
    first = max(delays, default=-1) + 1
    more = [(i, other) for i in range(first, len(choices)) for other in choices[i]]
    return 1 + sum(runs_with(count - 1, {**delays, i: other}, make) for i, other in more)
