"""The reasoner: many questions about a video, answered by replicas that already know it.

The routing logic is pure (no Ray, no HTTP, the clock is an argument). Read it in the order of a request:

    keys         headers or content  -> the session's key, scoped per tenant
    routing      key                 -> a decision: which replica, and what became of the session
      policy       what a request may do when its session's home is ready, full, draining, dead or gone
      lease        this gateway's copy of the table, asked first; tells the table in batches
      sessions     the table itself, owned by one actor, asked only for sessions a gateway does not know
      placement    where a session without a home goes
    health       what one gateway believes of each replica
    poison       which media may have killed a replica
    replica_media  which media a replica holds, so that bytes are sent once
    explain      the same decision, told instead of taken
"""
