"""What a process shares between all calls and threads: locks and forks, and results that are kept.

`preparation` has the locks that planning and compiling hold, and forks wait for; `cache` has what
is kept in memory. The lowest floor: it imports nothing of ours, and knows neither kernels nor
plans.
"""
