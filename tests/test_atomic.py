"""A result is whole or absent, whatever ends the writing, and no file of the user is lost."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowland import InputError, atomic
from lowland.atomic import check_writable, replaced_directory, write_file, write_page
from stores import names

FILES = ("a.txt", "b.txt")
PAGE = '<!doctype html>\n<meta name="generator" content="Lowland 0.1.0">\n<p>numbers'


def write(target: Path, text: str) -> None:
    with replaced_directory(target) as beside:
        for name in FILES:
            (beside / name).write_text(text)


def read(target: Path) -> set[str]:
    assert {p.name for p in target.iterdir()} == {*FILES, "SHA256SUMS"}
    return {(target / name).read_text() for name in FILES}


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch):
    """How directories are swapped: in one step, or as on systems that have none."""
    if request.param == "two renames":
        monkeypatch.setattr(atomic, "_exchange", lambda a, b: False)
    return request.param


def test_a_new_result_and_its_replacement(tmp_path, way):
    target = tmp_path / "deep" / "er" / "out"
    write(target, "old")
    assert read(target) == {"old"}
    write(target, "new")
    assert read(target) == {"new"}
    assert names(target.parent) == {"out"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may lack the one-step exchange")
def test_this_system_swaps_in_one_step(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, "a")
    write(b, "b")
    assert atomic._exchange(a, b)
    assert (read(a), read(b)) == ({"b"}, {"a"})


def test_it_respects_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "out", "new")
        write_file(tmp_path / "page", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "page").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_inside_keeps_the_old_result(tmp_path, error):
    write(tmp_path / "out", "old")

    def half(target: Path) -> None:
        with replaced_directory(target) as beside:
            (beside / "a.txt").write_text("new")
            raise error

    for target in (tmp_path / "out", tmp_path / "none", tmp_path / "deep" / "none"):
        with pytest.raises(error):
            half(target)
    assert names(tmp_path) == {"out"}
    assert read(tmp_path / "out") == {"old"}


def test_a_full_disk_is_said_on_one_line(tmp_path):
    write(tmp_path / "out", "old")
    with (
        pytest.raises(InputError, match=r"cannot write .*out: No space left on device"),
        replaced_directory(tmp_path / "out"),
    ):
        raise OSError(28, os.strerror(28))
    assert read(tmp_path / "out") == {"old"}
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["mkdir", "rename", "rmtree"])
def test_a_signal_at_a_bad_moment_waits(tmp_path, monkeypatch, way, number, moment):
    """While a directory is made, swapped or removed; afterwards it arrives."""
    target = tmp_path / "out"
    write(target, "old")
    came = []

    def handler(number, frame):
        came.append(number)
        raise KeyboardInterrupt

    owner = atomic.shutil if moment == "rmtree" else Path
    if (moment, way) == ("rename", "exchange"):
        owner, moment = atomic, "_exchange"
    real = getattr(owner, moment)

    def disturbed(*args, **kwargs):
        signal.raise_signal(number)
        return real(*args, **kwargs)

    before = signal.signal(number, handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(owner, moment, disturbed)
            with pytest.raises(KeyboardInterrupt):
                write(target, "new")
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert set(came) == {number}
    assert names(tmp_path) == {"out"}
    assert read(target) == {"old" if moment == "mkdir" else "new"}


def test_outside_the_main_thread_it_works_as_well(tmp_path):
    thread = threading.Thread(target=write, args=(tmp_path / "out", "new"))
    thread.start()
    thread.join()
    assert read(tmp_path / "out") == {"new"}


ENDLESS = """
import itertools
from pathlib import Path
from lowland.atomic import replaced_directory
for i in itertools.count():
    with replaced_directory(Path("out")) as beside:
        for name in ("a.txt", "b.txt"):
            (beside / name).write_text(str(i) * 20_000)
    if i == 3:
        print("going", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may lack the one-step exchange")
def test_a_killed_process_leaves_a_whole_result_and_hidden_names_at_most(tmp_path):
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS], cwd=tmp_path, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(
            0.003 * attempt
        )  # another moment each time; what must hold does not depend on it
        process.kill()
        process.wait()
        process.stdout.close()
        assert len(read(tmp_path / "out")) == 1  # both files of one and the same run
        assert all(name == "out" or name.startswith(".lowland-") for name in names(tmp_path))


def test_a_failed_second_rename_puts_the_old_result_back(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_exchange", lambda a, b: False)
    write(tmp_path / "out", "old")
    real, count = Path.rename, []

    def second_fails(self, target):
        count.append(target)
        if len(count) == 2:
            raise PermissionError(13, "Permission denied")
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", second_fails)
        with pytest.raises(InputError, match="Permission denied"):
            write(tmp_path / "out", "new")
    assert read(tmp_path / "out") == {"old"}
    assert names(tmp_path) == {"out"}


def test_files_of_the_user_are_never_removed(tmp_path):
    target = tmp_path / "out"
    write(target, "old")
    (target / "notes.txt").write_text("mine")
    for attempt in (check_writable, lambda t: write(t, "new")):
        with pytest.raises(
            InputError, match=r"out holds 'notes\.txt', which Lowland did not write"
        ):
            attempt(target)
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "a.txt").read_text() == "old"
    (target / "notes.txt").rename(
        target / ".DS_Store"
    )  # what a file manager leaves is no file of his
    write(target, "new")
    assert read(target) == {"new"}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def sealed_by_the_user(folder: Path) -> None:
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in folder.iterdir()]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


CLAIMS = {
    "names of ours": lambda folder: None,
    "an empty list": lambda folder: (folder / "SHA256SUMS").touch(),
    "a list of their own": sealed_by_the_user,
    "a list of ours for others": lambda folder: (
        write(folder.parent / "ours", "new")
        or shutil.copy(folder.parent / "ours" / "SHA256SUMS", folder)
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_directory_that_lowland_did_not_make_is_never_replaced(tmp_path, claim):
    """Although its files have the names of ours."""
    target = tmp_path / "out"
    target.mkdir()
    for name in FILES:
        (target / name).write_text("mine")
    CLAIMS[claim](target)
    before = snapshot(tmp_path)
    for attempt in (check_writable, lambda t: write(t, "new")):
        with pytest.raises(InputError, match="which Lowland did not write.* move it away, or ch"):
            attempt(target)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", [*FILES, "report.html"])
def test_a_file_that_was_changed_since_is_the_users(tmp_path, name):
    target = tmp_path / "out"
    write(target, "old")
    (target / name).write_text("mine")
    before = snapshot(target)
    with pytest.raises(InputError, match=f"out holds '{name}', which Lowland did not write, or no"):
        write(target, "new")
    assert snapshot(target) == before
    (target / name).unlink()  # what is missing is no loss
    write(target, "new")
    assert read(target) == {"new"}


def test_a_page_takes_the_place_of_a_page_only(tmp_path):
    target = tmp_path / "notes.html"
    target.write_text("<p>mine")
    with pytest.raises(
        InputError, match=r"notes\.html is no page that Lowland wrote.*move it away"
    ):
        write_page(target, PAGE)
    assert target.read_text() == "<p>mine"
    target.unlink()
    for text in (PAGE, PAGE + "again"):
        write_page(target, text)
        assert target.read_text() == text
    write(tmp_path / "out", "old")
    write_page(tmp_path / "out" / "report.html", PAGE)
    write(tmp_path / "out", "new")  # a report of ours goes with its directory
    assert read(tmp_path / "out") == {"new"}


def test_a_link_keeps_its_place(tmp_path):
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "real") == {"new"}
    assert names(tmp_path) == {"link", "real"}


def test_check_writable_writes_nothing(tmp_path):
    write(tmp_path / "out", "old")
    for target in (tmp_path / "out", tmp_path / "none", tmp_path / "deep" / "er" / "none"):
        check_writable(target)
    assert names(tmp_path) == {"out"}
    assert read(tmp_path / "out") == {"old"}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("file", "file is a file; choose another"),
        ("file/out", "file is a file, so .*file/out cannot be inside it; choose another"),
        ("/proc/none/out", "cannot write the output directory /proc/none/out: "),
        (".", "is the current directory.* choose one inside it, such as lowland-report"),
        ("/", "/ is a mount point.* inside it, such as /lowland-report"),
        ("loop", "loop is a link in a circle; choose another"),
        ("x" * 300, "File name too long"),
    ],
)
def test_places_that_cannot_be_written(tmp_path, monkeypatch, target, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    for attempt in (check_writable, lambda t: write(t, "new")):
        with pytest.raises(InputError, match=says):
            attempt(Path(target))
    assert names(tmp_path) == {"file", "loop"}
    assert (tmp_path / "file").read_text() == "mine"


def test_write_file_replaces_whole(tmp_path):
    page = tmp_path / "page"
    write_file(page, "old")
    write_file(page, "new ± \udcff")  # a byte of a file name that is no UTF-8
    assert page.read_text(encoding="utf-8") == "new ± ?"
    with pytest.raises(InputError, match=r"cannot write .*none/page: No such file"):
        write_file(tmp_path / "none" / "page", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder: Is a directory"):
        write_file(tmp_path / "folder", "x")
    assert names(tmp_path) == {"page", "folder"}
