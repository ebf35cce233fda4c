"""Suites of whole models of torch, and of calls on tensors: torch with and without `enable`."""
