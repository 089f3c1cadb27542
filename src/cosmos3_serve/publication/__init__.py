"""Publications at rest: their layout, and the one verifier that the client, the review and the audit share."""
