"""Compiled programs in a folder or bucket, which a replica loads instead of compiling.

fingerprint   what a program hangs on, in words and as a digest
folder        the files, sealed with a key
loading       finds what was made for this machine, and loads it beside the weights
trial         the first load on a machine, in a process of its own
"""
