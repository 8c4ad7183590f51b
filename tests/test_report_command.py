"""The report's command line, and its page in a browser."""

import functools
import http.server
import json
import os
import re
import shutil
import statistics
import subprocess
import threading
from pathlib import Path

import matplotlib.image
import pytest
from report_folders import (  # type: ignore[import-not-found, unused-ignore]
    MANIFEST,
    add_columns,
    folder,
    report,
)

from analysis.report.command import main


def test_mistakes_are_one_line_each(tmp_path, capsys):
    good = folder(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    mixed = folder(tmp_path / "mixed")
    add_columns(mixed, scenario=["a", "b", "a", "b"])
    twice = folder(tmp_path / "twice")
    add_columns(twice, run=1)
    words = folder(tmp_path / "words")
    add_columns(words, stall_ratio="much")
    broken = folder(tmp_path / "broken")
    (broken / "summary.csv").write_text("scenario,scheme,run\na,b,1\na,b,1,4\n")
    other = folder(tmp_path / "other")
    (other / "summary.csv").write_text("name,value\na,1\n")
    (tmp_path / "there.html").write_text("mine")
    out = str(tmp_path / "new.html")
    fifo = tmp_path / "fifo"  # as /dev/null and /dev/stdout, which root would replace
    os.mkfifo(fifo)
    for arguments, line in (
        ([tmp_path / "none"], "is no folder"),
        ([tmp_path / "empty"], "is no results folder"),
        ([good, tmp_path / "empty"], "is no results folder"),
        ([mixed], "mixes 2 scenarios"),
        ([twice], "is in the summary twice"),
        ([broken], "is no table"),
        ([other], "has no column 'scenario'"),
        ([words], "line 2: stall_ratio is 'much', no number"),
        ([good, "--out", tmp_path], "is a folder"),
        ([good, "--out", tmp_path / "there.html"], "already exists: give --force"),
        ([good, "--out", tmp_path / "none" / "a.html"], "cannot write"),
        ([good, "--force", "--out", fifo], "is no file that could be replaced"),
    ):
        words_ = [str(word) for word in arguments]
        assert main(words_ if "--out" in words_ else [*words_, "--out", out]) == 2, arguments
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1, captured.err
        assert captured.err.startswith("error: ") and line in captured.err
    assert (tmp_path / "there.html").read_text() == "mine"
    assert not Path(out).exists()
    assert fifo.is_fifo()


def test_only_force_replaces_a_page(tmp_path, capsys):
    path = folder(tmp_path / "a")
    report(path)
    assert main([str(path)]) == 2
    assert "already exists" in capsys.readouterr().err
    (path / "report.html").write_text("old")
    assert "svg" in report(path, "--force").text
    assert [found.name for found in path.glob(".*")] == []


def test_the_same_folder_gives_the_same_page(tmp_path):
    path = folder(tmp_path / "a")
    assert report(path).text == report(path, "--force").text


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "examples:" in capsys.readouterr().out


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
WIDTHS = (360, 1400)
HARNESS = """<!doctype html><title></title><body><script>
console.log("the harness runs");
const found = {}, widths = %s;
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; height: 900px; width: ${width}px`;
  frame.src = "report.html";
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    for (const details of page.querySelectorAll("details")) details.open = true;
    const svg = [...page.querySelectorAll("svg")];
    found[width] = {
      inner: root.clientWidth, needed: root.scrollWidth, figures: svg.length,
      drawn: svg.filter((s) => s.querySelector("path").getBoundingClientRect().width > 100).length,
    };
    if (Object.keys(found).length === widths.length) document.title = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"""


def browse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Open web/harness.html over HTTP, as a browser lets no page look into a file."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [
                *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"),
                *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", *words),
                f"http://127.0.0.1:{server.server_address[1]}/harness.html",
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        server.shutdown()
    return done


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed: apt-get install chromium")
def test_in_a_browser_nothing_is_wider_than_the_page(tmp_path):
    long = "a-scheme-with-a-name-that-is-longer-than-any-telephone-is-wide-0123456789"
    manifest = MANIFEST | {"title": "word" * 60, "commit": "f" * 200, "schemes": [long, "tcp"]}
    path = folder(tmp_path / "a", manifest, {(long, 1): 0.1, ("tcp", 1): 0.2, ("tcp", 2): 0.3})
    arguments = [str(path), "--out", str(tmp_path / "web" / "report.html")]
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "harness.html").write_text(HARNESS % list(WIDTHS))
    assert main(arguments) == 0

    done = browse(tmp_path, "--dump-dom", "--virtual-time-budget=20000")
    title = re.search("<title>(.+)</title>", done.stdout)
    assert title, done.stderr
    found = json.loads(title.group(1))
    for width in map(str, WIDTHS):
        assert found[width]["needed"] <= found[width]["inner"], found
        assert found[width]["drawn"] == found[width]["figures"] > 4, found
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert len(said) == 1 and "the harness runs" in said[0], said  # errors would be there as well


PHONE = 390
#: A telephone's page as a whole; its regions' places, and whether they hold more than they show.
TELEPHONE = """<!doctype html><title></title><body style="margin: 0"><script>
const frame = document.createElement("iframe");
frame.style = "border: 0; display: block; width: %dpx; height: %dpx";
frame.src = "report.html";
frame.onload = () => {
  const page = frame.contentDocument, found = [];
  for (const region of page.querySelectorAll(".scroll")) {
    const box = region.getBoundingClientRect(), more = region.scrollWidth - region.clientWidth;
    if (box.height < 10) continue;
    region.scrollLeft = 30;
    const moved = region.scrollLeft;
    region.scrollLeft = 0;
    found.push({
      right: box.right, left: box.left, middle: box.top + box.height / 2, more, moved,
      keys: region.tabIndex === 0 && !!region.getAttribute("aria-label"),
    });
  }
  document.title = JSON.stringify(found);
};
document.body.append(frame);
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed: apt-get install chromium")
def test_on_a_telephone_what_goes_on_to_the_side_is_shaded_there(tmp_path):
    path = folder(tmp_path / "a")
    (tmp_path / "web").mkdir()
    assert main([str(path), "--out", str(tmp_path / "web" / "report.html")]) == 0
    height = 7000
    (tmp_path / "web" / "harness.html").write_text(TELEPHONE % (PHONE, height))
    done = browse(tmp_path, "--dump-dom", "--virtual-time-budget=20000")
    title = re.search("<title>(.+)</title>", done.stdout)
    assert title, done.stderr
    regions = json.loads(title.group(1))
    picture = tmp_path / "phone.png"
    size = f"--window-size=800,{height}"
    browse(tmp_path, f"--screenshot={picture}", size, "--virtual-time-budget=20000")
    pixels = matplotlib.image.imread(picture)[..., :3]  # 0 to 1

    def shade(x: float, y: float) -> float:
        """How far the middle pixel of a strip is from white: letters and lines are fewer."""
        strip = pixels[int(y) - 15 : int(y) + 15, int(x)]
        return 1 - statistics.median(strip.min(axis=1).tolist())

    wide = [region for region in regions if region["more"] > 1]
    assert len(wide) > 4
    for region in regions:
        assert region["keys"], region
        right = shade(region["right"] - 2, region["middle"])
        if region["more"] > 4 * 16:
            assert right > 0.3, region
            assert region["moved"] == 30, region
            assert shade(region["left"] + 1, region["middle"]) < 0.1, region  # nothing is there
