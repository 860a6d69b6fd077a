"""What people type, by kind; the tasks of the main road stand in `tasks.py`, which takes these in."""
