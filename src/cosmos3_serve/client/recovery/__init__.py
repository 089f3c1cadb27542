"""Recovery of a lost batch: outputs that a service still holds, or a copied output directory, become a publication.

recover.py       one run: origin, outputs, publication     record.py        report, refusal, provenance
first_attempt.py the request that was asked                qualify.py       are the outputs what was asked?
sources.py       ledger by request id, or a directory      native_files.py  native_hashes.py: files of a directory
"""
