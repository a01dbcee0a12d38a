"""The page and the HTTP service: `puzlm web`, extra `web`."""
