"""What `make attack` runs, by family: tests that stand where what they attack stands.

A name is a file of tests, or tests of a file. ``QUICK`` is the part that `make test` runs through
the same command."""

from __future__ import annotations

FAMILIES: dict[str, tuple[str, ...]] = {
    "one folder, one owner": (
        "posterior/test_folder_lock.py",
        "tabular/test_run_folder.py",
    ),
    "kills: sampling, drawing, checkpoints, saves": (
        "posterior/test_kill.py",
        "posterior/test_every_moment.py",
        "run/test_same_bits.py",
    ),
    "interrupts, SIGTERM, resuming": (
        "cli/test_interrupt.py",
        "sampling/test_resume_checks.py",
    ),
    "full and read-only disks": ("posterior/test_full_disk.py",),
    "hostile safetensors and JSON": ("posterior/test_fuzz.py", "posterior/test_links.py"),
    "hostile CSV and NPZ": ("data/test_table_fuzzing.py", "data/test_npz.py"),
    "hostile IDX, gzip and mirrors": (
        "data/test_images.py::test_a_damaged_file_is_refused_by_name_and_left_alone",
        "data/test_images.py::test_a_damaged_gz_is_refused",
        "data/test_images.py::test_a_gzip_bomb_is_never_inflated_past_the_expected_size",
        "data/test_images.py::test_a_corrupt_cache_file_is_removed",
        "data/test_download.py",
    ),
    "hostile names in terminal, page and browser": (
        "cli/test_hostile_names.py",
        "report/test_browser.py::test_hostile_text_does_nothing",
        "report/test_page.py::test_hostile_text_is_only_text",
        "report/test_page.py::test_nothing_comes_from_outside",
        "report/test_page.py::test_writing_is_all_or_nothing",
    ),
    "outputs": ("test_output_files.py", "cli/test_outputs.py"),
    "ranks of one optimizer": ("distributed/test_optimizer_ranks.py", "optim/test_loss_scale.py"),
    "ranks killed, stopped, disagreeing": (
        "distributed/test_shared_checkpoint.py",
        "distributed/test_group.py",
    ),
    "FSDP2: ranks killed": ("optim/test_sharded.py",),
    "threads, forks and sanitizers": ("test_threads.py", "attack/test_sanitizers.py"),
    "the native engine: its inputs and its cache": (
        "execution/test_native_hostile.py",
        "execution/test_native_cache.py",
    ),
    "clocks, noexec, read-only packages, quotas": ("attack/test_surroundings.py",),
    "load and odd numbers": (
        "sampling/test_pitfalls.py",
        "tabular/test_wide.py",
        "cli/test_odd_input.py",
        "sampling/test_later_batches.py",
        "optim/test_optimizer_copies.py",
        "attack/test_public_api.py",
    ),
    "leaks: steps and saves": ("attack/test_leaks.py",),
}

#: One family: every one costs a start of pytest, and `make test` runs their tests itself.
QUICK = {"links in place of files": ("posterior/test_links.py",)}
