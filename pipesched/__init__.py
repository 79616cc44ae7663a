"""The command line: one file per subcommand, no logic of its own."""
