"""The model cache family: which folder, which variables, and every way it is refused."""

from pathlib import Path

import pytest

import cosmos3_serve
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.weights import model_cache as module
from cosmos3_serve.weights.cache_dir import default_cache
from cosmos3_serve.weights.model_cache import CLAIM, FAMILY, MOUNT, find_model_cache, settle_model_cache


def test_the_family_is_that_of_the_spec(tmp_path: Path) -> None:
    environ = {"NPA_MODEL_CACHE_DIR": str(tmp_path / "c")}
    cache = settle_model_cache(environ, modules=())
    assert cache is not None and cache.source == "NPA_MODEL_CACHE_DIR"
    root = tmp_path / "c"
    assert environ == {
        "NPA_MODEL_CACHE_DIR": str(root),
        "HF_HOME": f"{root}/huggingface",
        "HF_HUB_CACHE": f"{root}/huggingface/hub",
        "HUGGINGFACE_HUB_CACHE": f"{root}/huggingface/hub",
        "TRANSFORMERS_CACHE": f"{root}/huggingface/hub",
        "HF_DATASETS_CACHE": f"{root}/huggingface/datasets",
        "HF_XET_CACHE": f"{root}/huggingface/xet",
        "TORCH_HOME": f"{root}/torch",
        "COSMOS_HF_CACHE": f"{root}/huggingface",
        "NLTK_DATA": f"{root}/nltk",
        "NPA_COSMOS3_CACHE": f"{root}/cosmos3",
        "COSMOS_DOWNLOAD_CACHE_DIR": f"{root}/cosmos3/downloads",
    }
    assert all((root / folder).is_dir() for folder in FAMILY.values())
    assert [p.name for p in root.iterdir() if p.name.startswith(".")] == []  # no probe is left


def test_nothing_set_and_nothing_mounted_leaves_all_as_it_is(tmp_path: Path) -> None:
    environ = {"HF_HOME": "/somewhere"}
    assert settle_model_cache(environ, mount=tmp_path / "none", modules=()) is None
    assert environ == {"HF_HOME": "/somewhere"}


@pytest.mark.parametrize("name", ["NPA_MODEL_CACHE_PVC", "NPA_MODEL_CACHE_FILESYSTEM"])
def test_an_announced_cache_lies_at_the_mount(tmp_path: Path, name: str) -> None:
    cache = find_model_cache({name: "mine", "NPA_MODEL_CACHE_NAMESPACE": "team"}, mount=tmp_path)
    assert cache is not None
    assert (cache.root, cache.source, cache.namespace) == (tmp_path, name, "team")
    assert cache.claim == ("mine" if name.endswith("PVC") else CLAIM)


def test_the_directory_wins(tmp_path: Path) -> None:
    environ = {"NPA_MODEL_CACHE_DIR": str(tmp_path), "NPA_MODEL_CACHE_HOST_PATH": "/h", "NPA_MODEL_CACHE_PVC": "p"}
    cache = find_model_cache(environ, mount=Path("/nowhere"))
    assert cache is not None
    assert (cache.root, cache.claim, cache.host_path) == (tmp_path, "p", "/h")


def test_a_mount_that_is_simply_there_is_used_but_yields_to_hf_home(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    assert settle_model_cache(environ, mount=tmp_path, modules=()) is not None
    assert environ["HF_HOME"] == f"{tmp_path}/huggingface"
    chosen = {"HF_HOME": "/mine"}
    assert settle_model_cache(chosen, mount=tmp_path, modules=()) is None
    assert chosen == {"HF_HOME": "/mine"}


def test_disabled(tmp_path: Path) -> None:
    environ = {"NPA_MODEL_CACHE_DIR": str(tmp_path), "NPA_MODEL_CACHE_DISABLED": "yes"}
    assert settle_model_cache(environ, modules=()) is None
    assert "HF_HOME" not in environ


def test_a_replaced_variable_is_named_not_its_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settle_model_cache({"NPA_MODEL_CACHE_DIR": str(tmp_path), "HF_HOME": "/secret-place"}, modules=())
    assert "HF_HOME" in caplog.text and "secret-place" not in caplog.text


PACKAGE = str(Path(cosmos3_serve.__file__).parent / "cache")


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({"NPA_MODEL_CACHE_DIR": "s3://bucket/cache"}, "model_cache_bucket"),
        ({"NPA_MODEL_CACHE_FILESYSTEM": "s3://bucket"}, "model_cache_bucket"),
        ({"NPA_MODEL_CACHE_DIR": "relative/path"}, "model_cache_invalid"),
        ({"NPA_MODEL_CACHE_HOST_PATH": "relative"}, "model_cache_invalid"),
        ({"NPA_MODEL_CACHE_DISABLED": "perhaps"}, "model_cache_invalid"),
        ({"NPA_MODEL_CACHE_DIR": PACKAGE}, "model_cache_in_package"),
        ({"NPA_MODEL_CACHE_DIR": "/proc/cache"}, "model_cache_unwritable"),
        ({"NPA_MODEL_CACHE_DIR": "/dev/null/cache"}, "model_cache_unwritable"),
    ],
)
def test_refusals(environ: dict[str, str], code: str) -> None:
    with pytest.raises(StartRefused) as refused:
        settle_model_cache(dict(environ), modules=())
    assert (refused.value.stable_code, refused.value.exit_code) == (code, 3)
    assert refused.value.remedy
    assert not Path(PACKAGE).exists()


def test_a_folder_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: object) -> None:
        raise OSError(95, "Operation not supported")  # what a mounted bucket answers

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(StartRefused) as refused:
        settle_model_cache({"NPA_MODEL_CACHE_DIR": str(tmp_path)}, modules=())
    assert refused.value.stable_code == "model_cache_no_symlinks"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == []


@pytest.mark.parametrize("loaded", ["huggingface_hub", "nltk"])
def test_too_late_is_refused(tmp_path: Path, loaded: str) -> None:
    environ = {"NPA_MODEL_CACHE_DIR": str(tmp_path)}
    with pytest.raises(StartRefused) as refused:
        settle_model_cache(environ, modules=[loaded])
    assert refused.value.stable_code == "model_cache_late"
    assert "HF_HOME" not in environ
    already = {**environ, "HF_HOME": f"{tmp_path}/huggingface", "NLTK_DATA": f"{tmp_path}/nltk"}
    assert settle_model_cache(already, modules=[loaded]) is not None


def test_our_own_cache_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPA_COSMOS3_CACHE", "/c/cosmos3")
    assert default_cache() == Path("/c/cosmos3")
    monkeypatch.delenv("NPA_COSMOS3_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/cosmos3-serve")


def test_the_standard_mount() -> None:
    assert Path("/opt/npa-model-cache") == MOUNT and module.HOST_DEFAULT == "/var/lib/npa/model-cache"
