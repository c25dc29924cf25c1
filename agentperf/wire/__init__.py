"""SSE decoding, API dialects, transports, the capability check of an endpoint. Knows no agents and no SLOs."""
