"""What prompts ask for, and in what mixture."""

# How the target's prompts of a kind begin; the rest it writes itself.
OPENINGS = {
    "chat": ("",),
    "summarising": (
        "Summarise the following text in three sentences.\n\n",
        "Summarize the following text:\n\n",
        "Give me a one-sentence summary of this article.\n\n",
        "List the main points of the following text.\n\n",
        "Rewrite the following paragraph in simpler words.\n\n",
        "Correct the grammar and spelling of this text:\n\n",
    ),
    "code": (
        "Write a Python function that",
        "Fix the bug in this function and return the corrected function.\n\n```\ndef",
        "Add type hints and a docstring to this function.\n\n```python\ndef",
        "Explain what this code does:\n\n```python\n",
        "Write a script that",
        "Rename the variables in this code so that they are easier to read.\n\n```\n",
    ),
}
PROSE_TASKS = (
    "Summarise the following text in three sentences.\n\n{}",
    "Summarize this text:\n\n{}",
    "{}\n\nSummarise the text above in two sentences.",
    "Rewrite the following text in simpler words.\n\n{}",
    "Rewrite this as a list of bullet points:\n\n{}",
    "What is the following text about?\n\n{}",
)
CODE_TASKS = (
    "Explain what this function does.\n\n```python\n{}\n```",
    "Add type hints to this function. Return the whole function.\n\n```\n{}\n```",
    "Add comments to this code. Return the whole code.\n\n```python\n{}\n```",
    "Is there a bug in this function? Return the corrected function.\n\n```\n{}\n```",
    "Write a unit test for this function.\n\n```python\n{}\n```",
)
# Shares of the training prompts: (kind, written by the target or made from texts).
SHARES = {
    ("chat", True): 0.5,
    ("summarising", True): 0.13,
    ("code", True): 0.13,
    ("summarising", False): 0.12,
    ("code", False): 0.12,
}
