//! `balancer_by_lua` of an `upstream`: a script chooses the server of each attempt in place of the
//! group's method.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_ssl::scripted::{Chosen, ServerChoice};
use weir_upstream::{Failure, Group, Peer};

use crate::scripts;
use crate::session::Session;
use crate::settings::Proxy;
use crate::status::SessionError;

/// The script's choices for one session.
pub struct Chooser(Box<ServerChoice>);

/// Why the script chose no server for an attempt.
pub enum Unchosen {
    /// The session ends with this error.
    Ends(SessionError),
    /// The attempt failed, as if its server could not be reached.
    Fails,
}

impl Chooser {
    /// A chooser before the first attempt. `tries` is how many attempts are allowed so far.
    pub fn new(s: &Session, group: &Group, tries: u32) -> Chooser {
        let (most, has_servers) = (s.conf().proxy.tries, !group.is_empty());
        Chooser(Box::new(ServerChoice { tries, most, has_servers, ..ServerChoice::default() }))
    }

    /// Runs the script for the next attempt, and adds the attempts that it grants to `left`.
    /// `None`: the group's method chooses.
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
            Chosen::Ends(status) => return Err(Unchosen::Ends(SessionError::Script(status))),
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

    /// Tells the script, on its next run, how the attempt failed.
    pub fn failed(&mut self, failure: Failure) {
        self.0.before = Some(failure);
    }

    /// The local address to connect from, if the script set one.
    pub fn from(&self) -> Option<SocketAddr> {
        self.0.from
    }

    /// The proxy settings with the script's time-outs, if it set any.
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
