"""What became of each request: a journal that writes log lines and trace spans when asked to."""
