//! Stores the limits of a QUIC connection with its sessions.
//!
//! A client that resumes a session sends early data within these limits. So a session with larger
//! limits than today's is not resumed (RFC 9000, section 7.4.1). Neither is a session of another
//! version of QUIC (RFC 9369, section 5).

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::quic::Version;
use rustls::server::{ProducesTickets, StoresServerSessions};

/// What a client may send on a new QUIC connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialLimits {
    /// Concurrent bidirectional streams.
    pub streams: u64,
    /// Bytes on each of these streams.
    pub window: u64,
}

/// The version's label and two 64-bit limits, which follow the session.
const LENGTH: usize = 17;

impl InitialLimits {
    /// A configuration that stores these limits and this version with its sessions. Version 1
    /// without early data needs neither, since only early data depends on limits.
    pub(crate) fn bind(self, version: Version, config: Arc<ServerConfig>) -> Arc<ServerConfig> {
        if config.max_early_data_size == 0 && !matches!(version, Version::V2) {
            return config;
        }
        let mut bound = ServerConfig::clone(&config);
        let start = Start { limits: self, label: label(version) };
        bound.ticketer = Arc::new(Bound { sessions: config.ticketer.clone(), start });
        bound.session_storage = Arc::new(Bound { sessions: config.session_storage.clone(), start });
        Arc::new(bound)
    }
}

const fn label(version: Version) -> u8 {
    match version {
        Version::V2 => 2,
        _ => 1,
    }
}

/// What is stored with the sessions of a connection.
#[derive(Debug, Clone, Copy)]
struct Start {
    limits: InitialLimits,
    label: u8,
}

impl Start {
    fn add(self, mut session: Vec<u8>) -> Vec<u8> {
        session.push(self.label);
        session.extend_from_slice(&self.limits.streams.to_be_bytes());
        session.extend_from_slice(&self.limits.window.to_be_bytes());
        session
    }

    /// The session alone, if it has this version and its limits do not exceed these.
    fn take(self, mut session: Vec<u8>) -> Option<Vec<u8>> {
        let at = session.len().checked_sub(LENGTH)?;
        let tail = session.split_off(at);
        let (label, limits) = tail.split_first()?;
        let (streams, window) = limits.split_first_chunk::<8>()?;
        let window = u64::from_be_bytes(*window.first_chunk()?);
        let InitialLimits { streams: most, window: longest } = self.limits;
        let within = u64::from_be_bytes(*streams) <= most && window <= longest;
        (within && *label == self.label).then_some(session)
    }
}

/// Issues tickets or stores sessions, each with a [`Start`] behind it.
#[derive(Debug)]
struct Bound<T: ?Sized> {
    start: Start,
    sessions: Arc<T>,
}

impl ProducesTickets for Bound<dyn ProducesTickets> {
    fn enabled(&self) -> bool {
        self.sessions.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.sessions.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.sessions.encrypt(&self.start.add(plain.to_vec()))
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.start.take(self.sessions.decrypt(ticket)?)
    }
}

impl StoresServerSessions for Bound<dyn StoresServerSessions> {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.sessions.put(key, self.start.add(value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.start.take(self.sessions.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.start.take(self.sessions.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_accepted_while_no_limit_is_lower() {
        let limits =
            |streams, window| Start { limits: InitialLimits { streams, window }, label: 1 };
        let kept = limits(8, 1000).add(b"session".to_vec());
        for (now, good) in [
            (limits(8, 1000), true),
            (limits(9, 2000), true),
            (limits(7, 2000), false),
            (limits(9, 999), false),
        ] {
            assert_eq!(now.take(kept.clone()).as_deref(), good.then_some(&b"session"[..]));
        }
        assert_eq!(Start { label: 2, ..limits(8, 1000) }.take(kept), None, "another version");
        assert_eq!(limits(8, 1000).take(b"short".to_vec()), None);
    }
}
