"""The media gate: what a client points at becomes bytes that are known, bounded and safe to hand to a replica.

Read it in the order of a request:

    locate        raw body -> light body + parts (big data URLs are cut out before JSON sees them)
      content       which parts are media, and that no other part is
      options       processing options: what changes tokens, what a client may not set
      parts         what a part is, and where its bytes are to come from
      dataurl       data URLs
    gate          parts -> items
      item          what comes out: path, hashes, uuid, facts, cost; held until the request ends
      fetch         https, http, s3 -> bytes in the store
        address       which host, port and address may be asked
        wire          the connection itself, pinned to a checked address
        revisit       which URL gave which content, per tenant
        flight        the same work at the same time is done once
      store         bytes by content, bounded by bytes and age
        blobs         one file each, locked while in use
      upload_store  uploads of the files API, in a directory or an object store that gateways share
        file_record   what is known about one upload
        upload_sweep  expiry and bounds
      screen        content -> verdict, asked for once
        verdicts      what the probe said, remembered
        probe         processes that may die of a file
          worker        such a process
          sniff         what the first bytes say
          examine       facts about a video
          jpeg          sizes in a JPEG's markers
          picture       facts about an image
          judge         facts -> pass, normalise or refuse
          replica       what replicas' decoders get right by themselves
          normalise     one upright, constant-rate H.264 copy of what they would get wrong
      sampling      which frames a replica will really use of a video, and what they cost
      picture_cost  what an image costs
    info, limits, refusal   what a content is; every number; every no
"""
