"""The figures of the explanations, drawn by the code that they show."""
