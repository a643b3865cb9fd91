"""What people and programs read and write: lines, tables, JSON; and the signals that end a command."""
