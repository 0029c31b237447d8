"""The configs of other tools: what each says of a run (read), and an option of a plan in its words (write).

One file a dialect; `table.py` lists them.
"""
