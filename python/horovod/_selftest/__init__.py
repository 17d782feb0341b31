"""What `ronde test` runs to check this installation with all installed frameworks.

`__main__` starts a job of two ranks for each part and prints the result; `parts` is what those
ranks run.
"""
