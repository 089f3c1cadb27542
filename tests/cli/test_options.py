"""The command line is generated from the settings model."""

from pathlib import Path
from typing import Any, Literal

import pytest
import typer

from cosmos3_serve.cli import main, options
from cosmos3_serve.settings import GeneratorSettings, Settings, option


class Demo(Settings):
    count: int = option(4, "How many.", env="DEMO_COUNT", ge=1, le=9)
    rate: float | None = option(None, "How fast.", gt=0)
    safe: bool = option(True, "Careful.")
    kind: Literal["a", "b"] | None = option(None, "Which.")
    where: Path = option(Path("here"), "A place.")
    names: tuple[str, ...] = option(("x", "y"), "Several.")


def parse(*argv: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @options.settings_options(Demo)
    def demo(flags: dict[str, Any], extra: bool = False) -> None:
        """A demo."""
        seen.update(flags, extra=extra)

    app(args=list(argv), standalone_mode=False)
    return seen


def test_options_not_given_are_none() -> None:
    given = parse()
    assert given.pop("extra") is False
    assert set(given) == set(Demo.model_fields)
    assert all(value is None for value in given.values())


def test_every_kind_of_option_arrives_typed() -> None:
    given = parse(
        "--count",
        "7",
        "--rate",
        "0.5",
        "--no-safe",
        "--kind",
        "b",
        "--where",
        "x/y",
        "--names",
        "n",
        "--names",
        "m",
        "--extra",
    )
    assert given == {
        "count": 7,
        "rate": 0.5,
        "safe": False,
        "kind": "b",
        "where": Path("x/y"),
        "names": ["n", "m"],
        "extra": True,
    }


def test_flags_win_over_the_environment_only_when_given() -> None:
    environ = {"DEMO_COUNT": "5"}
    assert Demo.load({k: v for k, v in parse().items() if k != "extra"}, environ).count == 5
    assert Demo.load({k: v for k, v in parse("--count", "6").items() if k != "extra"}, environ).count == 6


def test_help_names_default_limits_and_variable() -> None:
    assert options.help_text(Demo, "count") == "How many.  [default: 4; 1 to 9; env var: DEMO_COUNT]"
    assert options.help_text(Demo, "rate") == "How fast.  [more than 0]"
    assert options.help_text(Demo, "kind") == "Which."
    assert options.help_text(Demo, "names") == "Several.  [default: x, y]"


def test_every_setting_is_an_option_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(main.build(), "cosmos3", ["ray-serve", "--help"]) == 0
    text = capsys.readouterr().out
    for field in GeneratorSettings.model_fields:
        assert GeneratorSettings.flag_name(field) in text, field
        if env := GeneratorSettings.env_name(field):
            assert env in text.replace("\n", " "), field
