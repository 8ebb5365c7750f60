"""The steps of a picture: noise levels, schedulers as tables, and the random numbers on the way."""
