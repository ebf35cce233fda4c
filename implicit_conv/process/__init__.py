"""What a process shares between all calls and threads: locks and forks, the cache on disk, and what
is kept in memory.

`preparation` has the locks that planning and compiling hold, and forks wait for; `disk` saves and
loads entries of one folder, which `disk_folder` guards and keeps small; `cache` has the results
that are kept. The lowest floor: it imports nothing of ours, and knows neither kernels nor plans.
"""
