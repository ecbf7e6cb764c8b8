"""The structured state space model S4, derived step by step: the code that the book's chapters share."""
