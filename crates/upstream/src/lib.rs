//! Upstream peers: balancing among them, keep-alive pools, failures and retry.
