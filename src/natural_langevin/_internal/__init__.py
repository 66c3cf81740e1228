"""Tools that know nothing of sampling: files, tensors on disk, progress, memory.

Anything may import from here; nothing here imports from the rest of the package.
"""
