"""Pipeline-parallel schedules, simulated and executed; here the command line, one file per subcommand.

The folders `schedules`, `profiles`, `simulator` and `executor` are imported through here and under no other name.
"""
