"""Depth control: from measured steps and acceptances to how many tokens each request verifies."""
