"""From a problem to a result: the engines of all operators, and the methods whose candidates have
convolutions as parts.

The top floor of the CPU's engine; operators import it.
"""
