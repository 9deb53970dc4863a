//! The choice of a server by the group's script, before an attempt.

use std::sync::Arc;

use weir_upstream::{Failure, Limits, Peer};

use super::{Run, write};
use crate::request::Request;
use crate::request::passed::Attempt;
use crate::upstream::choosing::{Chosen, Situation, without_tls};
use crate::upstream::fault::Fault;
use crate::upstream::protocol::Protocol;
use crate::upstream::tls::UpstreamTls;

/// The default of `balancer_keepalive`, as in OpenResty.
const IDLE: usize = 32;

impl Run {
    /// Runs the group's script. `None` if the group chooses among its own servers.
    pub(super) fn choose<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &mut P,
    ) -> Result<Option<Arc<Peer>>, Fault> {
        if self.selection.is_none() {
            return Ok(None);
        }
        let Some(extras) = self.upstream.map(|upstream| &upstream.extras) else { return Ok(None) };
        let situation = Situation {
            tries: self.tries(),
            most: self.passing.retry.tries,
            has_servers: !self.group.is_empty(),
            idle: extras.idle.unwrap_or(IDLE),
        };
        let chooser = extras.chooser.as_deref();
        let Some((chooser, selection)) = chooser.zip(self.selection.as_deref_mut()) else {
            return Ok(None);
        };
        let length = r.body.len();
        selection.begin();
        match chooser.choose(r, situation, selection) {
            Chosen::Goes => self.obey(r, protocol, length),
            Chosen::Ends(status) => Err(unasked(r, Fault::Ended(status))),
            Chosen::Fails => {
                self.attempts += 1;
                Err(unasked(r, Fault::Peer(Failure::Error)))
            }
        }
    }

    /// Applies the script's choice. `length`: the length of the client's body before the script
    /// ran.
    fn obey<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &mut P,
        length: u64,
    ) -> Result<Option<Arc<Peer>>, Fault> {
        let Some(selection) = self.selection.as_deref_mut() else { return Ok(None) };
        let chosen = selection.peer.clone();
        if chosen.is_some() {
            selection.granted = selection.granted.saturating_add(selection.more);
            // The server is not one of the group's, so it has no counters and no client is bound to
            // it.
            self.asked = None;
            self.binding = None;
        }
        // The head has the length of the body, which the script may have replaced.
        if selection.recreates || r.body.len() != length {
            self.outgoing = write(r, protocol).map_err(Fault::Ended)?;
        }
        let context = &mut r.contexts.upstream;
        context.times = selection.times;
        if let Some(current) = &mut context.current {
            let scheme = protocol.scheme();
            current.scheme = if selection.plain { without_tls(scheme) } else { scheme };
        }
        if let (Some(secure), Some(host)) = (&mut self.secure, &selection.host) {
            secure.set_name(host);
        }
        if self.shared && r.event_loop.retiring() {
            selection.keepalive = None;
        }
        Ok(chosen)
    }

    /// How many attempts the request may make.
    pub(super) fn tries(&self) -> u32 {
        let retry = &self.passing.retry;
        match &self.selection {
            None => retry.attempts(self.group.tries()),
            Some(selection) => {
                retry.attempts(self.group.tries().max(1)).saturating_add(selection.granted)
            }
        }
    }

    /// The keepalive limits: the script's for this attempt, or the group's.
    pub(super) fn limits(&self) -> Option<&Limits> {
        let chosen = self.selection.as_ref().and_then(|selection| selection.keepalive.as_ref());
        chosen.or(self.limits)
    }

    /// The TLS settings of the connection.
    pub(super) fn secure(&self) -> Option<&UpstreamTls> {
        let plain = self.selection.as_ref().is_some_and(|selection| selection.plain);
        self.secure.as_deref().filter(|_| !plain)
    }
}

/// Records an attempt without a server.
fn unasked(r: &mut Request, fault: Fault) -> Fault {
    let attempt = Attempt::new(None, r.event_loop.handle.now());
    r.contexts.upstream.attempts.push(attempt);
    fault
}
