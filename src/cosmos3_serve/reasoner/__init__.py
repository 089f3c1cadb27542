"""The reasoner: many questions about a video, answered by replicas that have already seen it.

The routing logic is pure (no Ray, no HTTP, the clock is an argument). In the order of a request:

    gateway/    the public port: authentication, routes, relay; held_media: which media a replica holds
    media/      fetch, examine and store videos and images
    sessions/   keys    headers or content -> the session's key, scoped per tenant
                router  key -> which replica, and what became of the session
                policy  what a request may do when its session's home is ready, full, draining, dead or gone
                lease   this gateway's copy of the table, asked first; tells the table in batches
                table   the session table, owned by one actor, asked only for sessions that a gateway does not know
    fleet/      roster (members), health (what one gateway believes of each replica), view (both, for one gateway)
    engine/     one supervised vLLM server: its arguments, interpreter, process and supervisor
    registry    the Ray actor that holds roster and session table
"""
