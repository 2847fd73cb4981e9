"""The code that a step reaches, read as plain data: `closure` for code in memory, `declared` for files at rest."""
