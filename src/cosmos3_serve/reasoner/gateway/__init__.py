"""The gateway: the OpenAI surface of the reasoner in front of its replicas, as plain ASGI.

Read it in the order of a request:

    app          log line, token, failures; then the path decides
      chat       POST /v1/chat/completions: the life of one question
        body       bytes in, within bounds of size, time and memory
        ask        what the question says: model, stream, session, what is ours and not the engine's
        line       the bounded waiting line in front of the router
        parts      the body that one replica gets: media as uuid, or with its bytes
        upstream   keep-alive HTTP to replicas
        relay      the answer back: whole, or as events; what a broken stream ends with
      files, models, sessions, info    the small endpoints
    replica_errors what a replica's refusal becomes
    replica_figures what the engines count, for /metrics
    upkeep       what runs beside requests: fleet, leases, probes, sweeps
    canary       a text and a video that each replica must answer once
    front        everything that the routes stand on
    deployment   the Serve deployment that hosts it
"""
