"""docs/contributing/add-a-method.md, and the files that it has."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/contributing/add-a-method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^### `(\S+)`\n\n```\w+\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
