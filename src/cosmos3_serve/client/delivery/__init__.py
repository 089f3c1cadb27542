"""From an accepted response to its publication: artifacts are downloaded, verified, uploaded and read back.

deliver.py   the spool's windows, and what goes on at once     transfer.py  one file: by Range, hashed as it passes
window.py    how many small files at once                      reading.py   long bodies, read off the connection
"""
