"""Links out of `docs/` say where in the repository to look: the site does not hold those files."""

import re
from typing import Any

_OUTWARD = re.compile(r"\[([^]]+)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """See MkDocs' hooks."""
    return _OUTWARD.sub(r"\1 (`\2` in the repository)", markdown)
