"""A chosen GPU kernel bound to arrays, launched by the driver.

The top floor of the GPU's engine; operators import it.
"""
