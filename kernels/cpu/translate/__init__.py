"""Translate the engine's plain functions into LLVM code."""
