"""What comes in and goes out: arrays of numpy and of other libraries as views, and result arrays.

It knows problems, and neither engines nor operators. Engines, operators and doors import it.
"""
