"""Documentation says what the code says, and its links lead somewhere."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from house.test_imports import ALLOWED

from cosmos3_serve.checks.preflight import ALL, CHECKS, parse_checks
from cosmos3_serve.errors import Cosmos3Error, UsageError
from cosmos3_serve.settings import (
    REASONER_TOKEN_ENV,
    REASONER_TOKEN_FILE_ENV,
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    GeneratorSettings,
)

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "recipes").rglob("*.md")),
    ROOT / "benchmarks/README.md",
]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#([^)\s]+))?\)")
ANCHOR = re.compile(r"\]\(#([^)\s]+)\)")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def slugs(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_generated_tables_equal_the_code(page: Path) -> None:
    render = runpy.run_path(str(ROOT / "docs" / "generate.py"))["render"]
    assert render(text(page)) == text(page), "run `make docs`"


def test_every_generated_block_is_used() -> None:
    blocks = runpy.run_path(str(ROOT / "docs" / "generate.py"))["BLOCKS"]
    every = "".join(map(text, PAGES))
    assert all(f"<!-- generated: {name} -->" in every for name in blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page: Path) -> None:
    for target, anchor in LINK.findall(text(page)):
        if re.match(r"[a-z]+:", target):
            continue
        found = page.parent / target
        assert found.exists(), f"{target} is not there"
        if anchor:
            assert anchor in slugs(found), f"{target} has no heading {anchor}"
    for anchor in ANCHOR.findall(text(page)):
        assert anchor in slugs(page), f"no heading {anchor}"


PACKAGE = ROOT / "src" / "cosmos3_serve"
PYTHON = [
    *ROOT.glob("*.py"),
    *(p for folder in ("src", "tests", "benchmarks", "docs", "containers") for p in (ROOT / folder).rglob("*.py")),
]


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: p.name)
def test_files_named_in_backticks_exist(page: Path) -> None:
    """A path from the repository or the page's own folder, or the end of a path within the repository's Python."""
    known = [f"/{path.relative_to(ROOT).as_posix()}" for path in PYTHON]
    gone = [
        name
        for name in re.findall(r"`([\w./-]+\.py)`", text(page))
        if not name.startswith("npa/")  # of another tool, in the page of its names
        and not (page.parent / name).is_file()
        and not any(path.endswith(f"/{name}") for path in known)
    ]
    assert gone == []


def test_every_folder_of_the_architectures_map_exists() -> None:
    page = section("docs/architecture.md", "Where to look")
    folders = re.findall(r"`([a-z_/]+/)`", page)
    assert folders and [name for name in folders if not (PACKAGE / name).is_dir()] == []


def test_the_rooms_are_those_that_the_import_rule_knows() -> None:
    """Row by row: the room, and what it may import."""
    said = {}
    for line in section("docs/architecture.md", "Rooms").splitlines():
        if line.startswith("| `"):
            name, _, allowed = (cell.strip() for cell in line.strip("|").split("|"))
            said[name.strip("`").removesuffix("/").removesuffix(".py")] = set(re.findall(r"\w+", allowed))
    for room, allowed in ALLOWED.items():
        expected = allowed if allowed is not None else {"everything"}
        shown = said.pop(room) - {"nothing"}
        assert shown == expected or "everything" in shown, f"{room}: the page says {sorted(shown)}"
    assert not said, "rooms that are gone"


def test_the_handbook_names_every_setting_and_both_token_variables() -> None:
    handbook = text(ROOT / "docs" / "operations.md")
    for field in GeneratorSettings.model_fields:
        assert GeneratorSettings.flag_name(field) in handbook
    assert TOKEN_ENV in handbook
    assert TOKEN_FILE_ENV in handbook


def test_every_code_of_the_error_map_is_documented() -> None:
    def tree(kind: type[Cosmos3Error]) -> set[str]:
        return {kind.code} | {code for child in kind.__subclasses__() for code in tree(child)}

    page = text(ROOT / "docs" / "errors.md")
    assert [code for code in tree(Cosmos3Error) if f"`{code}`" not in page] == []


def test_symptoms_name_codes_that_exist() -> None:
    errors, fleet = (text(ROOT / "docs" / name) for name in ("errors.md", "reasoner-fleet.md"))
    rows = [line.split("|")[1] for line in text(ROOT / "docs/symptoms.md").splitlines() if line.startswith("| ")]
    named = {code for cell in rows for code in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", cell)}
    others = {"output_root"}  # a readiness check
    assert len(named) > 30
    assert {code for code in named if f"`{code}`" not in errors + fleet} <= others


def section(page: str, head: str) -> str:
    return text(ROOT / page).partition(f"\n## {head}\n")[2].partition("\n## ")[0]


def test_the_handbook_names_the_checks_that_there_are_and_those_of_others_that_are_refused() -> None:
    words = section("docs/operations.md", "Before anything is provisioned")
    assert {f"`{name}`" for name in (*CHECKS, ALL)} <= set(re.findall(r"`\w+`", words))
    for name in ("token_factory", "nebius"):
        assert f"`{name}`" in words
        with pytest.raises(UsageError):
            parse_checks(name)


def test_the_handbook_installs_both_engines_and_the_reasoner_with_extras_that_there_are() -> None:
    words = section("docs/operations.md", "Install")
    rows = {line.split("|")[1].strip() for line in words.splitlines() if line.startswith("|")}
    assert {"client", "service, diffusers engine", "service, framework engine", "reasoner"} <= rows
    extras = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    assert {"diffusers", "reasoner"} <= set(re.findall(r"pip install '\.\[(\w+)\]'", words)) <= set(extras)


def test_nothing_is_installed_by_a_name_that_no_package_index_has() -> None:
    """Until it is published: in pages, in what commands print, in container files and manifests."""
    places = [ROOT / name for name in ("src", "docs", "recipes", "workflows", "containers", "scripts", "benchmarks")]
    files = [path for place in places for path in place.rglob("*") if path.suffix not in (".pyc", ".sha256", ".png")]
    for path in [ROOT / "README.md", ROOT / "Makefile", *files]:
        if path.is_file():
            for line in text(path).splitlines():
                assert not re.search(r"cosmos3-serve\[|install ['\"]?cosmos3-serve\b", line), f"{path}: {line}"


def test_the_handbook_rotates_the_tokens_of_both_services() -> None:
    words = section("docs/operations.md", "Tokens and their rotation")
    assert {TOKEN_ENV, TOKEN_FILE_ENV, REASONER_TOKEN_ENV, REASONER_TOKEN_FILE_ENV} <= set(
        re.findall(r"[A-Z0-9_]{8,}", words)
    )


def test_the_contract_lists_the_routes_that_there_are() -> None:
    page = section("docs/contract.md", "2 HTTP")
    listed = set(re.findall(r"`(?:GET|POST|DELETE) (/[^`]*)`", page))
    routes = "".join(text(path) for path in sorted((PACKAGE / "generator").rglob("*.py")))
    served = {path.replace(":path", "") for path in re.findall(r"Route\(\s*\"(/[^\"]*)\"", routes)}
    assert {path for path in served if not path.startswith("/v1/chat")} == listed


def test_sections_of_the_contract_that_the_code_cites_exist() -> None:
    heads = set(re.findall(r"^#+ ([0-9.]+) ", text(ROOT / "docs" / "contract.md"), re.MULTILINE))
    cited = [
        (path.relative_to(ROOT).as_posix(), number)
        for path in PYTHON
        for number in re.findall(r"docs/contract\.md,? (\d+(?:\.\d+)?)", path.read_text(encoding="utf-8"))
    ]
    assert len(cited) > 20 and [one for one in cited if one[1] not in heads] == []


def test_no_comment_cites_what_is_not_in_the_repository() -> None:
    cites = re.compile(
        r"\b(?:rulings|wire baseline|[Ff]ramework (?:section|report)|generator spec|reasoner spec)\b|spec/\w+\.md"
    )
    found = [
        path.relative_to(ROOT).as_posix() for path in PYTHON if path != Path(__file__) and cites.search(text(path))
    ]
    assert found == []
