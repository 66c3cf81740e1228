"""The defaults under test: three lines of code, held against references and against rivals.

``small``: six small networks against No-U-Turn sampling of the same posterior, in function space.
"""
