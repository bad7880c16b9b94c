"""Alembic's entry: migrations run on the connection that queue_runner.store.migrate hands over, in its transaction."""

from alembic import context

from queue_runner.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
