"""Entries that the tests of the cache's folder save, and what the folder holds."""

NAME, OTHER = (f"function-{digit * 32}.kernel" for digit in "01")
PAYLOAD = bytes(range(256)) * 10


def files(folder):
    """The names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())
