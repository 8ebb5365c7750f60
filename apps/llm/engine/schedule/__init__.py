"""Which tokens are computed when: sequences, their queue, pages and slots, and the turns that run them."""
