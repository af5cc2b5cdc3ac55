"""Code in the project's documents."""

import re


def code_blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a page that are in a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [block for written_in, block in blocks if written_in == language]
