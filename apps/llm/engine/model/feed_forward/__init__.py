"""The feed-forward networks: what a layer computes of each token by itself.

interface  what a feed-forward network is to the decoder
mlp        one network
experts    many, of which a router picks a few for each token
beside     both, side by side
choice     the network that a layer's value describes
"""
