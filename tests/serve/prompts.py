"""Thirty prompts of different kinds."""

PASSAGE = (
    "The lighthouse on the northern cape was built in 1871 after three ships had been lost in a "
    "single winter. Its lamp burned whale oil until 1902, when it was converted to paraffin. The "
    "keeper's family lived in the cottage below the tower and kept goats on the cliff meadow. In "
    "1954 the light was automated, and since then nobody has lived at the cape."
)
CODE = """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)
"""

PROMPTS = (
    "Why is the sky blue?",
    "What is the capital of France, and what is it known for?",
    "Tell me a joke about computers.",
    "Explain photosynthesis to a ten-year-old.",
    "Give me five tips for sleeping better.",
    "How do I boil an egg?",
    "What is the difference between a virus and a bacterium?",
    "Who wrote Romeo and Juliet?",
    "Name three rivers in Europe and describe each in one sentence.",
    "What should I pack for a weekend in the mountains?",
    f"Summarise this text in two sentences:\n\n{PASSAGE}",
    f"List the years in this text and what happened in each:\n\n{PASSAGE}",
    f"Rewrite this text in the present tense:\n\n{PASSAGE}",
    f"Repeat this text word for word:\n\n{PASSAGE}",
    f"When was the light automated?\n\n{PASSAGE}",
    f"Write a title for this text:\n\n{PASSAGE}",
    "Write a Python function that reverses a string.",
    f"Add a docstring to this function:\n\n{CODE}",
    f"What does this function return for an empty list?\n\n{CODE}",
    f"Rewrite this function with sum():\n\n{CODE}",
    "Write an SQL query that counts the orders of each customer.",
    "Write a haiku about autumn.",
    "Write a short story about a fox and a robot.",
    "Write a limerick about a cat.",
    "Translate 'good morning, my friend' into French, German and Spanish.",
    "Count from 1 to 30, separated by commas.",
    "Write the alphabet, one letter per line.",
    "Solve step by step: a train goes 60 km in 45 minutes. How fast is it in km/h?",
    "Make a table with the planets and their order from the sun.",
    'Answer with JSON: {"name": ..., "age": ...} for a person called Ada, who is 36.',
)
