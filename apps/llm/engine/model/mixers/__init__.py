"""The mixers: what a layer's tokens see of those before them, and what is kept for those to come.

interface  what a mixer is to the rest of the engine
attention  softmax attention over a cache by pages
choice     the mixer that a layer's value describes
"""
