"""The other tools, one file each. Every file has `cases()`: the list of what it can be timed on."""
