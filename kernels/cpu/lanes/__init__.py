"""Lanes: parts of a program that threads run side by side, each with steps of its own.

Between two layers of a network there is little work, and what one thread has written the next layer
reads on any other. In lanes each thread goes on with its own part of all images, which its caches
have. It waits for others only where a segment begins, whose steps read what other lanes have
written. A thread takes over a lane whose own thread has not come, so that any number of threads
does all the work.

In reading order: `layout` says what threads read, `operator` makes the steps of a program,
`tasks` is what each thread does.
"""
