"""How things are said to a person or a pipe; imports nothing else of this repository."""
