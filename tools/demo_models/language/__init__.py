"""The demo language model: the text it learns from, its training and its evaluation.

`python -m tools.demo_models.language.train` makes `apps/llm/demo/model/` again.
"""
