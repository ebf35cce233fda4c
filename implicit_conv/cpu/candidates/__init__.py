"""What a method answers with: views of a problem, tilings, costs, and candidates made of them.

It imports calls and the machine; methods import it.
"""
