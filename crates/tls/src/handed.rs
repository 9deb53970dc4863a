//! A session of TLS 1.2 that is kept elsewhere: one connection is handed a session, and hands out the one that it begins.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::StoresServerSessions;

use crate::notes;
use crate::server::ServerSettings;

/// What the session is good for, and until when, stand before it.
const CONTEXT: usize = 32;
const UNTIL: usize = 8;

/// The sessions of one connection.
#[derive(Default)]
pub struct HandedSessions(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    /// What the client is said to resume.
    given: Option<Vec<u8>>,
    /// What was begun: its id, and the session.
    begun: Option<(Vec<u8>, Vec<u8>)>,
}

impl HandedSessions {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client may resume this session, if it is of such a server and not too old.
    pub fn give(&self, session: Vec<u8>) {
        self.slots().given = Some(session);
    }

    /// The id and the session that the connection has begun.
    pub fn begun(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.slots().begun.clone()
    }
}

impl fmt::Debug for HandedSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandedSessions")
    }
}

impl ServerSettings {
    /// The configuration of these settings for a connection with such sessions, beside those that the server keeps.
    pub fn handing(
        &self,
        config: &ServerConfig,
        handed: &Arc<HandedSessions>,
    ) -> Arc<ServerConfig> {
        let mut config = config.clone();
        config.session_storage = Arc::new(HandedView {
            handed: handed.clone(),
            own: config.session_storage.clone(),
            context: self.session_context(),
            lifetime: self.session_timeout.as_secs(),
        });
        Arc::new(config)
    }
}

#[derive(Debug)]
struct HandedView {
    handed: Arc<HandedSessions>,
    own: Arc<dyn StoresServerSessions>,
    context: Vec<u8>,
    lifetime: u64,
}

impl HandedView {
    /// The session without what stands before it.
    fn open(&self, session: &[u8]) -> Option<Vec<u8>> {
        let (context, rest) = session.split_at_checked(CONTEXT)?;
        let (until, session) = rest.split_first_chunk::<UNTIL>()?;
        let is_good = context == self.context && now() <= u64::from_be_bytes(*until);
        is_good.then(|| session.to_vec())
    }
}

fn now() -> u64 {
    UnixTime::now().as_secs()
}

impl StoresServerSessions for HandedView {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        notes::session(&id);
        let until = now().saturating_add(self.lifetime).to_be_bytes();
        let session = [&self.context, &until[..], &value].concat();
        self.handed.slots().begun = Some((id.clone(), session));
        self.own.put(id, value);
        true
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let given = self.handed.slots().given.clone();
        match given.and_then(|session| self.open(&session)) {
            Some(session) => {
                notes::session(id);
                Some(session)
            }
            None => self.own.get(id),
        }
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.own.take(id)
    }

    fn can_cache(&self) -> bool {
        true
    }
}
