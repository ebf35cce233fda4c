"""Vector code as LLVM IR: types, loads and stores, elementary functions."""
