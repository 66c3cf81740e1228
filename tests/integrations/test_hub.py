"""Posteriors as repositories of the hub: here folders, which the hub's calls copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import small_run
from natural_langevin import Posterior
from natural_langevin._internal.tensorfile import StorageError
from natural_langevin.integrations import hub
from small_run import assert_same, network


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return small_run.sample()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Repositories under a folder, in the place of the hub's."""
    hf = pytest.importorskip("huggingface_hub")

    def create_repo(self: Any, repo_id: str, *, private: bool | None, exist_ok: bool) -> None:
        (tmp_path / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self: Any, *, repo_id: str, folder_path: str, **options: Any) -> Any:
        to = tmp_path / repo_id
        for pattern in options["delete_patterns"]:
            for path in to.glob(pattern):
                path.unlink()
        shutil.copytree(folder_path, to, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://example.invalid/{repo_id}/commit/1")

    def snapshot_download(repo_id: str, *, local_dir: str, allow_patterns: Any, **_: Any) -> None:
        for pattern in allow_patterns:
            for path in (tmp_path / repo_id).glob(pattern):
                shutil.copy(path, local_dir)

    monkeypatch.setattr(hf.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hf.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(hf, "snapshot_download", snapshot_download)
    return tmp_path


def test_pushed_and_loaded_it_has_the_same_bits(posterior: Posterior, site: Path) -> None:
    scores = posterior.evaluate(*small_run.data())
    for _ in range(2):  # the second takes the place of the first
        assert hub.push(posterior, "me/mine", scores=scores).endswith("me/mine/commit/1")
        names = {path.suffix for path in (site / "me/mine").iterdir()}
        assert names == {".md", ".json", ".safetensors"}
        assert len([*(site / "me/mine").iterdir()]) == 4
    assert_same(posterior, hub.load("me/mine", network()))
    assert_same(posterior, hub.load(site / "me/mine", network()))
    text = (site / "me/mine/README.md").read_text()
    assert text.startswith("---\nlibrary_name: natural-langevin\n")
    for line in (*str(scores).splitlines(), *str(posterior.plan).splitlines()):
        assert f"    {line}".rstrip() in text


def test_a_repository_is_not_trusted(posterior: Posterior, site: Path) -> None:
    hub.push(posterior, "me/mine")
    (path,) = (site / "me/mine").glob("samples-*.safetensors")
    path.write_bytes(path.read_bytes()[:-4] + b"evil")
    with pytest.raises(StorageError):
        hub.load("me/mine", network())


def test_a_card_shows_what_is_hostile(posterior: Posterior) -> None:
    other = small_run.sample()
    other.config = other.config | {"plan": other.config["plan"] | {"prior": "```\x1b[2J<script>"}}
    text = hub.card(other, title="<script>alert(1)</script>\n# more")
    assert "\x1b" not in text
    assert "\n# more" not in text
    assert not [line for line in text.splitlines() if "<script>" in line and line[:4] != "    "]
