"""The batch client: S3 (or a file) in, S3 (or a directory) out. Needs neither Ray nor torch.

load.py        input, endpoint, token, output path      follow.py      POST, events, the end of a batch
journal.py     a run on disk, before the POST           acceptance.py  is the answer complete?
journals.py    all runs of one root                     delivery/      downloads, and the publication of each window
submission.py  a new run; resume.py: an old one         publish.py     the order of publication
claims.py      who may publish at a place               record.py      what provenance.json says
http.py        one pool, one deadline, retries          outcome.py     what a failure means for the run
recovery/      retained outputs of a lost batch become a publication
"""
