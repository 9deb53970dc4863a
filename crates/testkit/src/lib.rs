//! Starts a server with a configuration text and speaks to it; for tests only.
