"""What people type, by kind; the tasks of the main road stand in `tasks.py`, which takes these in.

Nothing below the root is called `tasks`: Invoke looks for that name from the folder where one stands upwards.
"""
