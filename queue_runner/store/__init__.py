"""The SQLite store: schema, engine, the only writer of state (jobs), results, and fast read-only access (read)."""
