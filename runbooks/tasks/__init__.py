"""What people type, by kind; the tasks of the main road stand in `tasks.py`, which takes these in."""

if __name__ == "tasks":  # Invoke, called from a folder of runbooks/, looks upwards for `tasks` and finds this first
    from runbooks.surface import of_the_root

    namespace = of_the_root()
