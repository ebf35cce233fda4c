"""Asynchronous work: copies that arrive later, and the products of warpgroups."""
