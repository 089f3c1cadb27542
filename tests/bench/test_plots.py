import re
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image
from support.bench_runs import made

from cosmos3_serve.bench import compare, plots


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_each_plot_is_a_picture_with_lines_in_it(tmp_path: Path) -> None:
    drawn = plots.draw([made([2.0, 2.2]), made([1.0, 1.1], "session-affinity")], tmp_path)
    assert {path.stem for path in drawn} == {*plots.PLOTS, "ttft-by-question"}
    for path in drawn:
        picture = Image.open(path).convert("RGB")
        colours = picture.getcolors(1 << 20) or []
        assert sum(1 for _, (r, g, b) in colours if max(r, g, b) - min(r, g, b) > 60) > 2, "two lines have colours"


def test_the_page_needs_nothing_beside_itself_and_escapes_what_a_server_says(tmp_path: Path) -> None:
    run = made([2.0], server="<script>alert(1)</script>")
    text = plots.page([run], plots.draw([run], tmp_path), tmp_path).read_text()
    tags = Tags()
    tags.feed(text)
    assert "script" not in {tag for tag, _ in tags.seen} and "&lt;script&gt;" in text
    sources = [attrs["src"] or "" for tag, attrs in tags.seen if tag == "img"]
    assert len(sources) == 5 and all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"(href|src)='(?!data:)", text)
    assert "weights: random" in text and "is not checked" in text and "2000/" not in text
    assert "<td>1000/1000</td>" in text, "the time of each question"


def test_the_page_of_two_runs_holds_their_ratios(tmp_path: Path) -> None:
    a, b = made([2.0, 2.0]), made([1.0, 1.0], weights_by="caller")
    text = plots.compared(a, b, compare.compare(a, b), tmp_path).read_text()
    assert "<td>2.00 (2.00 to 2.00)</td>" in text and "separate runs" in text
    assert "weights: random (the caller&#x27;s statement" in text
