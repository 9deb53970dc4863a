//! Sessions of TLS 1.2 that are stored outside of the server, by scripts. A connection is offered
//! one session and reports the one that it creates.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::StoresServerSessions;

use crate::notes;
use crate::server::ServerSettings;

/// Each session is preceded by its context ([`ServerSettings::session_context`]), then by the
/// second at which it expires.
const CONTEXT: usize = 32;
const UNTIL: usize = 8;

/// The external sessions of one connection.
#[derive(Default)]
pub struct ExternalSessions(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    /// The session that the client may resume.
    offered: Option<Vec<u8>>,
    /// The ID and the value of the session that the connection has created.
    created: Option<(Vec<u8>, Vec<u8>)>,
}

impl ExternalSessions {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a session for resumption. It is ignored if it has another context or has expired.
    pub fn offer(&self, session: Vec<u8>) {
        self.slots().offered = Some(session);
    }

    /// The ID and the value of the session that the connection has created.
    pub fn created(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.slots().created.clone()
    }
}

impl fmt::Debug for ExternalSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExternalSessions")
    }
}

impl ServerSettings {
    /// A configuration of these settings for one connection, with external sessions besides those
    /// that the server stores.
    pub fn with_external_sessions(
        &self,
        config: &ServerConfig,
        external: &Arc<ExternalSessions>,
    ) -> Arc<ServerConfig> {
        let mut config = config.clone();
        config.session_storage = Arc::new(ExternalView {
            external: external.clone(),
            own: config.session_storage.clone(),
            context: self.session_context(),
            lifetime: self.session_timeout.as_secs(),
        });
        Arc::new(config)
    }
}

#[derive(Debug)]
struct ExternalView {
    external: Arc<ExternalSessions>,
    own: Arc<dyn StoresServerSessions>,
    context: Vec<u8>,
    lifetime: u64,
}

impl ExternalView {
    /// The session without its prefix, if it has this context and has not expired.
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

impl StoresServerSessions for ExternalView {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        notes::session(&id);
        let until = now().saturating_add(self.lifetime).to_be_bytes();
        let session = [&self.context, &until[..], &value].concat();
        self.external.slots().created = Some((id.clone(), session));
        self.own.put(id, value);
        true
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let offered = self.external.slots().offered.clone();
        match offered.and_then(|session| self.open(&session)) {
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
