//! What a client may send at first is kept with its session. A client that resumes it sends early data by these limits, so a
//! session with larger limits than today's is not resumed (RFC 9000, section 7.4.1).

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{ProducesTickets, StoresServerSessions};

/// What a client may send on a new connection of QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialLimits {
    /// Streams in both directions at once.
    pub streams: u64,
    /// Bytes on each of them.
    pub window: u64,
}

/// They follow a session as two words.
const LENGTH: usize = 16;

impl InitialLimits {
    /// The configuration for clients with these limits. Only early data depends on them.
    pub(crate) fn bind(self, config: Arc<ServerConfig>) -> Arc<ServerConfig> {
        if config.max_early_data_size == 0 {
            return config;
        }
        let mut bound = ServerConfig::clone(&config);
        bound.ticketer = Arc::new(Bound { sessions: config.ticketer.clone(), limits: self });
        bound.session_storage =
            Arc::new(Bound { sessions: config.session_storage.clone(), limits: self });
        Arc::new(bound)
    }

    fn add(self, mut session: Vec<u8>) -> Vec<u8> {
        session.extend_from_slice(&self.streams.to_be_bytes());
        session.extend_from_slice(&self.window.to_be_bytes());
        session
    }

    /// The session without its limits, if these are within today's.
    fn take(self, mut session: Vec<u8>) -> Option<Vec<u8>> {
        let at = session.len().checked_sub(LENGTH)?;
        let tail = session.split_off(at);
        let (streams, window) = tail.split_first_chunk::<8>()?;
        let window = u64::from_be_bytes(*window.first_chunk()?);
        let within = u64::from_be_bytes(*streams) <= self.streams && window <= self.window;
        within.then_some(session)
    }
}

/// Tickets or stored sessions, with their limits.
#[derive(Debug)]
struct Bound<T: ?Sized> {
    limits: InitialLimits,
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
        self.sessions.encrypt(&self.limits.add(plain.to_vec()))
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.limits.take(self.sessions.decrypt(ticket)?)
    }
}

impl StoresServerSessions for Bound<dyn StoresServerSessions> {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.sessions.put(key, self.limits.add(value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.limits.take(self.sessions.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.limits.take(self.sessions.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_good_while_no_limit_is_lower() {
        let limits = |streams, window| InitialLimits { streams, window };
        let kept = limits(8, 1000).add(b"session".to_vec());
        for (now, good) in [
            (limits(8, 1000), true),
            (limits(9, 2000), true),
            (limits(7, 2000), false),
            (limits(9, 999), false),
        ] {
            assert_eq!(now.take(kept.clone()).as_deref(), good.then_some(&b"session"[..]));
        }
        assert_eq!(limits(8, 1000).take(b"short".to_vec()), None);
    }
}
