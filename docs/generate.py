"""Write the tables of the documentation that come from the code; `make docs` runs it, a test compares.

A generated block stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
from pathlib import Path

from cosmos3_serve.cli import tables

DOCS = Path(__file__).parent
BLOCKS = {
    "ray-serve settings": lambda: tables.settings_markdown(tables.SETTINGS["ray-serve"]),
    "ray-batch settings": lambda: tables.settings_markdown(tables.SETTINGS["ray-batch"]),
    "reasoner serve settings": lambda: tables.settings_markdown(tables.SETTINGS["reasoner serve"]),
    "reasoner batch settings": lambda: tables.settings_markdown(tables.SETTINGS["reasoner batch"]),
    "exit codes": tables.exit_codes_markdown,
    "wire names": tables.wire_names_markdown,
    "wire limits": tables.wire_limits_markdown,
    "assets": tables.assets_markdown,
    "errors": tables.errors_markdown,
    "specific codes": tables.codes_markdown,
    "sample codes": tables.samples_markdown,
    "request fields": tables.fields_markdown,
    "openai fields": tables.openai_fields_markdown,
    "openai sizes": tables.openai_sizes_markdown,
    "replica figures": tables.replica_figures_markdown,
}
BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """The same page with every generated block as the code says now. KeyError: no such block."""
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]() + found[4], text)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
