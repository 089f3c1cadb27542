"""The media gate: what a client points at becomes bytes that are known, bounded and safe to hand to a replica.

Read it in the order of a request:

    locate      raw body -> light body + parts   (big data URLs are cut out before JSON sees them)
      parts       what a part is, and where its bytes are to come from
      dataurl     data URLs
    gate        parts -> items: path, hash, what is in it, uuid
      fetch       https, http, s3 -> bytes in the store
        address     which host, port and address may be asked
        wire        the connection itself, pinned to a checked address
        revisit     which URL gave which content, per tenant
      store       bytes by content, bounded by bytes and age
        verdicts    what the probe said, never asked twice
        uploads     the files API
      probe       bytes -> facts, in a process that may die of them
        worker      that process
        sniff       what the first bytes say
        examine     facts about a video or an image
        judge       facts -> pass, normalise or refuse
        normalise   one upright, constant-rate H.264 copy of what replicas would get wrong
    sampling    which frames a replica will really use, and how many tokens they cost
"""
