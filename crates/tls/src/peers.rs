//! Sessions with servers, those of each server apart. A server cannot resume another one's session, and must not see
//! its ticket.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{ClientSessionMemoryCache, ClientSessionStore};

/// Servers whose sessions are kept. The one that was not connected to for longest makes room for another.
const PEERS: usize = 128;
/// Tickets kept of each server, eight for each name that it is called by.
const TICKETS: usize = 64;

type Store = Arc<dyn ClientSessionStore>;

/// The sessions of a configuration, by the addresses of servers.
#[derive(Default)]
pub struct PeerSessions {
    /// The last one connected to is the last.
    peers: Mutex<Vec<(String, Store)>>,
}

impl PeerSessions {
    /// Those with one server.
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
    fn servers_that_are_not_connected_to_for_long_are_forgotten() {
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
