"""Tools independent of sampling: files, tensors on disk, progress, memory.

Imports nothing of the package; everything may import it.
"""
