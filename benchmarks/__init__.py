"""What measures, and writes results/*.json: each file is one command, `python -m benchmarks.NAME`."""
