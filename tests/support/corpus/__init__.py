"""Small files of every kind, made by code, with what a reader must find in each. All of them: `files.corpus`."""
