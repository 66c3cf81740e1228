"""What a user names as an output: links, devices, pipes and modes stay what they were."""

import os
import stat
import threading
from pathlib import Path

import pytest

from natural_langevin._internal.atomic import output
from natural_langevin._internal.messages import LONGEST, bounded, visible


def write(path: Path, content: bytes = b"new") -> None:
    with output(path) as handle:
        handle.write(content)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_a_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(path)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_secret_file_is_never_readable_by_others_meanwhile(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with output(path) as handle:
        handle.write(b"secret")
        modes = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {0o600}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    write(link, b"one")  # a link to nothing yet
    write(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"
    assert list((tmp_path / "elsewhere").iterdir()) == [target]


def test_a_pipe_and_a_device_are_written_to(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join(30)
    assert found == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "null").symlink_to("/dev/null")
    write(tmp_path / "null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_what_cannot_be_written_is_an_error_and_nothing_is_left(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    before = sorted(tmp_path.iterdir())
    for name in ("folder", "a", "nul\0", "x" * 300, "missing/file"):
        with pytest.raises(OSError, match=".+"):
            write(tmp_path / name)
    with pytest.raises(OSError, match="space"):
        write(Path("/dev/full"), b"x" * 100_000)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "hostile",
    ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "a\rb", "\x08\x08", "\x7f", "\u202egnp.exe", "\0"],
)
def test_control_characters_are_written_out(hostile):
    shown = visible(f"before{hostile}after")
    assert shown.isprintable()
    assert shown.startswith("before")
    assert shown.endswith("after")


def test_text_of_people_stays_as_it_is():
    for text in ("naïve café", "日本語", "a\tb\nc", "±2 €", "مرحبا", "👩‍🔬"):
        assert visible(text) == text


def test_a_long_message_keeps_its_beginning_and_its_end():
    cut = bounded("begin " + "x" * 10**6 + " end")
    assert len(cut) <= LONGEST
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert bounded("short") == "short"
