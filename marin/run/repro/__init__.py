"""What `marin repro` does: write an artifact's lineage as a folder that makes it again, and check that it does."""
