"""The run directory: manifest, journal, append-only records, summary."""
