"""The Hub by the environment, by huggingface_hub's own rules."""

from pathlib import Path

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.weights.hub_env import DEFAULT_ENDPOINT, Hub


def test_defaults() -> None:
    hub = Hub.from_environ({})
    home = Path.home() / ".cache" / "huggingface"
    assert (hub.endpoint, hub.token, hub.offline, hub.home, hub.cache) == (
        DEFAULT_ENDPOINT, "", False, home, home / "hub",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HOME": "/c/hf"}, "/c/hf/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/c/hf", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HF_HOME": "/c/hf", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"),
    ],
)
def test_the_cache(environ: dict[str, str], cache: str) -> None:
    assert Hub.from_environ(environ).cache == Path(cache)


@pytest.mark.parametrize("word", ["1", "true", "YES", "On"])
def test_offline(word: str) -> None:
    assert Hub.from_environ({"HF_HUB_OFFLINE": word}).offline
    assert Hub.from_environ({"TRANSFORMERS_OFFLINE": word}).offline
    assert not Hub.from_environ({"HF_HUB_OFFLINE": "0"}).offline


def test_a_token_is_never_shown() -> None:
    hub = Hub.from_environ({"HF_TOKEN": " hf_secret\n"})
    assert hub.token == "hf_secret"
    assert "hf_secret" not in repr(hub) + str(hub)


@pytest.mark.parametrize("text", ["ftp://hub", "hub.example", "http://", "http://user:pw@hub.example", "http://h/?a=1"])
def test_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        Hub.from_environ({"HF_ENDPOINT": text})
