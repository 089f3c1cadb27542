"""YAML out and in: the same objects, scripts readable, what is no manifest refused."""

from __future__ import annotations

import sys

import pytest
import yaml

from cosmos3_serve.deploy.yamltext import from_yaml, one_mapping, to_yaml
from cosmos3_serve.errors import InputError, StartRefused, UsageError

ODD = {"a": "yes", "b": "on", "c": "1.32", "d": "0o7", "e": "null", "f": "", "g": "a: b", "h": "x\ny\n", "i": ["1e3"]}


def test_what_is_written_is_read_back() -> None:
    assert from_yaml(to_yaml([ODD, {"x": 1}], heading="a\n\nb"), "here") == [ODD, {"x": 1}]


def test_scripts_are_blocks_and_lists_are_indented() -> None:
    assert to_yaml([{"s": "set -eu\nexec x\n", "l": [1]}]) == "s: |\n  set -eu\n  exec x\nl:\n  - 1\n"
    assert to_yaml([{}], heading="one\n\ntwo").startswith("# one\n#\n# two\n")


def test_a_list_of_kubectl_is_its_items_and_empty_documents_are_none() -> None:
    text = "---\n---\nkind: List\nitems:\n  - kind: A\n  - kind: B\n"
    assert [d["kind"] for d in from_yaml(text, "x")] == ["A", "B"]


@pytest.mark.parametrize(
    "text", ["a: [", "- a\n- b\n", "just words", "a: 1\n a: 2", "\x00", "!!python/object:os.system {}"]
)
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        from_yaml(text, "file.yaml")
    assert refused.value.stable_code == "manifest_unreadable" and "file.yaml" in refused.value.detail


@pytest.mark.parametrize("text", ["a: [", "- a", "words"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        one_mapping(text, "values.yaml")
    assert refused.value.stable_code == "deploy_values_file"


def test_an_empty_values_file_sets_nothing() -> None:
    assert one_mapping("# nothing\n", "values.yaml") == {}


def test_without_pyyaml_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(StartRefused) as refused:
        to_yaml([{}])
    assert refused.value.stable_code == "deploy_extra_missing"


def test_nothing_is_written_that_only_this_library_reads() -> None:
    assert yaml.safe_load(to_yaml([ODD])) == ODD
