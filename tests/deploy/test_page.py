"""The coordinator's page in a browser: while training, with a stopped worker, without a server,
and after the end. NEREUS_SCREENSHOTS names a folder for pictures of it."""

import html.parser
import http.server
import json
import mimetypes
import os
import signal
import subprocess
import threading

import pytest
from conftest import ROOT, need
from watched_job import WatchedJob


class Page(html.parser.HTMLParser):
    """What a page shows: its title, the texts by id, and the rows of the tables by id."""

    def __init__(self, text):
        super().__init__()
        self.title = ""
        self.texts = {}
        self.rows = {}
        self.path = []  # Open tags with their ids.
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "br"):
            self.path.append((tag, dict(attrs).get("id")))
        if tag == "tr":
            self.rows.setdefault(self.near_id(), []).append([])
        if tag in ("td", "th"):
            self.rows[self.near_id()][-1].append("")

    def handle_endtag(self, tag):
        while self.path and self.path.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tags = [tag for tag, _ in self.path]
        if "title" in tags:
            self.title += data
        if self.near_id():
            self.texts[self.near_id()] = self.texts.get(self.near_id(), "") + data
        if tags and tags[-1] in ("td", "th"):
            self.rows[self.near_id()][-1][-1] += data

    def near_id(self):
        return next((name for _, name in reversed(self.path) if name), None)


def chromium(address, folder, *arguments):
    return subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={folder}", "--virtual-time-budget=3000", *arguments,
         address],
        capture_output=True, text=True, check=True, timeout=120).stdout


def look(job, tmp_path):
    return Page(chromium(job.url("coordinator", "/"), tmp_path / "profile", "--dump-dom"))


def keep_picture(address, tmp_path, name):
    folder = os.environ.get("NEREUS_SCREENSHOTS")
    for width in (1280, 480) if folder else ():
        chromium(address, tmp_path / "profile", f"--window-size={width},1600",
                 f"--screenshot={os.path.join(folder, f'{name}-{width}.png')}")


@pytest.fixture
def job(tmp_path):
    need("chromium")
    with WatchedJob(tmp_path, workers=3, servers=2, options=["--backup=1", "--lease=60"]) as made:
        yield made


def test_the_page_says_how_the_job_is(job, tmp_path):
    job.until_running()
    page = look(job, tmp_path)
    assert page.title == "good: default - Nereus"
    assert page.texts["summary"].startswith("The job runs: step ")
    assert "limits the speed" in page.texts["summary"]
    assert {row[0] for row in page.rows["workers"][1:]} == {"0", "1", "2"}
    assert {row[-1] for row in page.rows["workers"][1:]} == {"-"}
    assert [row[0] for row in page.rows["servers"][1:]] == ["0", "1"]
    assert page.texts["loss"] == "Any one server may be lost, and no step with it."
    assert {row[0] for row in page.rows["layers"][1:]} == {"first", "second"}
    assert page.rows["step"][4][0].startswith("waiting for the job")
    assert page.rows["events"][0] == ["time", "", "event"] and len(page.rows["events"]) > 1
    keep_picture(job.url("coordinator", "/"), tmp_path, "page-good")

    # A server is lost. Its values have no backup now.
    job.processes["server 1"].kill()
    job.until("server 1 is gone", lambda status: status["health"] == "at risk")
    page = look(job, tmp_path)
    assert page.title.startswith("at risk: ")
    assert "no current backup" in page.texts["summary"]
    assert [row[0] for row in page.rows["servers"][1:]] == ["0"]
    assert any("shard 1" in row[2] and row[1] == "warning" for row in page.rows["events"][1:])
    keep_picture(job.url("coordinator", "/"), tmp_path, "page-lost-server")

    # A worker is stopped. All others wait for it.
    job.processes["worker 1"].send_signal(signal.SIGSTOP)
    job.until("worker 1 is silent", lambda status: status["health"] == "bad")
    page = look(job, tmp_path)
    assert page.title.startswith("bad: ")
    assert "worker 1 (" in page.texts["summary"] and "has sent nothing" in page.texts["summary"]
    assert page.rows["workers"][1][0] == "1" and "silent for" in page.rows["workers"][1][-1]
    keep_picture(job.url("coordinator", "/"), tmp_path, "page-stopped-worker")


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the page's files with a status.json that the test has kept."""

    files = {"/": "page.html", "/script.js": "script.js", "/style.css": "style.css"}
    kept = None

    def do_GET(self):
        if self.path in self.files:
            with open(os.path.join(ROOT, "server", "report", self.files[self.path]), "rb") as file:
                body = file.read()
        else:
            body = json.dumps(self.kept).encode() if self.kept else b""
        self.send_response(200)
        self.send_header("Content-Type", mimetypes.guess_type(self.path)[0] or "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# A coordinator ends soon after its job, so a copy of its last answers is looked at.
def test_the_page_says_how_the_job_ended(tmp_path):
    need("chromium")
    with WatchedJob(tmp_path, workers=3, servers=1, steps=300, options=["--lease=3"]) as job:
        job.until_running()
        # The coordinator waits for a moment for a worker that counts as dead and may live.
        job.processes["worker 1"].send_signal(signal.SIGSTOP)
        job.until("worker 1 counts as dead", lambda status: status["counts"]["workers_lost"] == 1)
        Pages.kept = job.until("the job is over", lambda status: status["health"] == "over")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        page = Page(chromium(address, tmp_path / "profile", "--dump-dom"))
        assert page.title == "over: default - Nereus"
        assert page.texts["summary"].startswith("The job is finished, after step 299")
        keep_picture(address, tmp_path, "page-over")
        Pages.kept = None  # The coordinator has ended.
        page = Page(chromium(address, tmp_path / "profile", "--dump-dom"))
        assert page.title == "no answer - Nereus"
        assert "does not answer" in page.texts["summary"]
        server.shutdown()


def test_names_are_text_and_nothing_comes_from_elsewhere(job, tmp_path):
    job.start_worker(9, "--job-name=<b>x</b>")  # Refused, by its name.
    job.until_running()
    text = chromium(job.url("coordinator", "/"), tmp_path / "profile", "--dump-dom")
    assert "<b>" not in text
    assert "http:" not in text and "https:" not in text
