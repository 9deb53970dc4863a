//! Error logs: levels, files that can be reopened, stderr and syslog.
