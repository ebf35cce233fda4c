"""What a copy does: walks, loads and stores simulated, maps for a problem, banks.

It imports maps.
"""
