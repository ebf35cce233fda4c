"""What a core can do at most: its peak of multiply-adds and its bandwidth, measured.

`operator` launches what is `compiled`.
"""
