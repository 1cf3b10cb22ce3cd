"""The machine under a run: devices, processes, signals, files."""
