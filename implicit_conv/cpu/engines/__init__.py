"""From a problem to a result: fprop is one candidate, other operators are sums of several.

The top floor of the CPU's engine; operators import it.
"""
