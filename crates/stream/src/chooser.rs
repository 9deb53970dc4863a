//! A script of an `upstream`, which chooses the server of each attempt in place of the group's method.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_ssl::scripted::{Chosen, ServerChoice};
use weir_upstream::{Failure, Group, Peer};

use crate::scripts;
use crate::session::Session;
use crate::settings::Proxy;
use crate::status::SessionError;

/// What a session has of it.
pub struct Chooser(Box<ServerChoice>);

/// Why an attempt has no server.
pub enum Unchosen {
    /// The session ends.
    Ends(SessionError),
    /// It counts as one that could not be reached.
    Fails,
}

impl Chooser {
    /// No attempt has begun, and there may be so many.
    pub fn new(s: &Session, group: &Group, tries: u32) -> Chooser {
        let (most, has_servers) = (s.conf().proxy.tries, !group.is_empty());
        Chooser(Box::new(ServerChoice { tries, most, has_servers, ..ServerChoice::default() }))
    }

    /// Lets the script choose; `left` is how many attempts there still may be. `None`: one of the group's own servers.
    pub fn choose(
        &mut self,
        s: &mut Session,
        group: &Group,
        left: &mut u32,
    ) -> Result<Option<Arc<Peer>>, Unchosen> {
        let choice = &mut self.0;
        (choice.peer, choice.more) = (None, 0);
        match scripts::choose(s, &group.name, choice) {
            Chosen::Goes => {}
            Chosen::Ends(500) => return Err(Unchosen::Ends(SessionError::Internal)),
            Chosen::Ends(status) => return Err(Unchosen::Ends(SessionError::Said(status))),
            Chosen::Fails => {
                choice.before = Some(Failure::Error);
                return Err(Unchosen::Fails);
            }
        }
        let chosen = choice.peer.take();
        if chosen.is_some() {
            choice.tries = choice.tries.saturating_add(choice.more);
            *left = left.saturating_add(choice.more);
        }
        Ok(chosen)
    }

    /// The attempt has failed.
    pub fn failed(&mut self, failure: Failure) {
        self.0.before = Some(failure);
    }

    /// The local address that the script has said.
    pub fn from(&self) -> Option<SocketAddr> {
        self.0.from
    }

    /// The settings, if the script has changed them.
    pub fn changed(&self, proxy: &Proxy) -> Option<Box<Proxy>> {
        let ServerChoice { connect, idle, .. } = *self.0;
        (connect.is_some() || idle.is_some()).then(|| {
            Box::new(Proxy {
                connect_timeout: connect.unwrap_or(proxy.connect_timeout),
                timeout: idle.unwrap_or(proxy.timeout),
                ..proxy.clone()
            })
        })
    }
}
