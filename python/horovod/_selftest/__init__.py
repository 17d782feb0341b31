"""What `ronde test` runs: does this installation work, with the frameworks that are here?

`__main__` starts a job of two ranks for each part and tells how it went; `parts` is what those
ranks do.
"""
