"""What builds the book: run the notebooks, publish them."""
