"""What the runs of field studies compute: functions of settings and a seed that return numbers."""
