"""The demo language model: the text it learns from, its training and its evaluation.

`model/` is what the scripts here made; `python -m apps.llm.demo.train` makes it again.
"""
