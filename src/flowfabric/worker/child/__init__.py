"""Tasks in processes of their own: what a worker can end, whatever the function does."""
