//! Sessions that clients store, separately for each server. A server cannot resume another server's
//! session, and must not see its ticket.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{ClientSessionMemoryCache, ClientSessionStore};

/// The most servers. A new one replaces the server whose last connection is longest ago.
const PEERS: usize = 128;
/// The most tickets for one server: eight for each of eight server names.
const TICKETS: usize = 64;

type Store = Arc<dyn ClientSessionStore>;

/// The sessions of a configuration, by the server's address.
#[derive(Default)]
pub struct PeerSessions {
    /// In the order of their last connections.
    peers: Mutex<Vec<(String, Store)>>,
}

impl PeerSessions {
    /// The sessions with one server.
    pub fn of(&self, peer: &str) -> Store {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = peers.iter().position(|(name, _)| name == peer).map(|at| peers.remove(at));
        let (name, store) = known.unwrap_or_else(|| {
            if peers.len() >= PEERS {
                peers.remove(0);
            }
            (peer.to_owned(), Arc::new(ClientSessionMemoryCache::new(TICKETS)))
        });
        peers.push((name, store.clone()));
        store
    }
}

impl fmt::Debug for PeerSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSessions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_servers_are_forgotten() {
        let sessions = PeerSessions::default();
        let first = sessions.of("first");
        let mut old = None;
        for n in 0..2 * PEERS {
            let store = sessions.of(&n.to_string());
            old.get_or_insert(store);
            assert!(Arc::ptr_eq(&sessions.of("first"), &first));
        }
        assert_eq!(sessions.peers.lock().unwrap().len(), PEERS);
        assert!(!Arc::ptr_eq(&sessions.of("0"), &old.unwrap()));
    }
}
