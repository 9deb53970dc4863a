//! One attempt: choose a peer, get a connection or a stream, send the request, read the answer's
//! head.

use std::sync::Arc;

use weir_engine::{Boxed, Chain};
use weir_upstream::{Connection, Peer, Picked, Tag};

use super::{EXCUSES, Run, Talk};
use crate::request::Request;
use crate::request::passed::{Attempt, Who};
use crate::upstream::counts::COUNTS;
use crate::upstream::fault::{Doing, Fault, complain};
use crate::upstream::groups::QueueSettings;
use crate::upstream::http2::{self, Room, Stream};
use crate::upstream::protocol::{Answer, Protocol, Reader as _};
use crate::upstream::transport::Transport;
use crate::upstream::upload::UnsentRequest;
use crate::upstream::{connect, head, seen, upload, waiting};

impl Run {
    /// Asks one server. Returns the connection and the head of the answer.
    pub(super) async fn attempt<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &mut P,
    ) -> Result<(Talk, Answer), Fault> {
        forget(r);
        (self.started, self.pooled) = (false, false);
        let peer = match self.choose(r, protocol)? {
            Some(peer) => peer,
            None => {
                let picked = match self.upstream.and_then(|u| u.queue.as_ref()) {
                    None => self.group.pick(&mut self.choice, r.event_loop.handle.now()),
                    Some(queue) => Box::pin(self.pick_in_turn(r, queue)).await?,
                };
                let Some(picked) = picked else { return Err(self.no_server(r)) };
                self.picked(r, picked)
            }
        };
        let tag = self.begin_attempt(r, &peer);
        let transport = match self.kept(r, &peer, tag) {
            Some(connection) => Transport::Own(connection),
            None => Boxed::new(|| self.open(r, protocol, &peer, tag)).await?,
        };
        let now = r.event_loop.handle.now();
        if let Some(attempt) = r.contexts.upstream.attempt() {
            attempt.connect = Some(now.saturating_duration_since(attempt.started));
        }
        if protocol.is_tunnel() {
            return Ok(opened(r, transport));
        }
        let sent = match self.send(r, protocol, &transport)? {
            Sent::All => Ok(None),
            Sent::Part(rest) => {
                Boxed::new(|| upload::whole_rest(r, self.passing, &transport, rest)).await
            }
            Sent::Begun(chain) => {
                Boxed::new(|| upload::stream(r, self.passing, &transport, protocol, chain)).await
            }
        };
        if sent.is_err() {
            transport.count(r);
        }
        let mut rest = sent?;
        let mut buf = Vec::new();
        let mut answer =
            head::read(r, self.passing, &transport, protocol, &mut buf, &mut rest).await;
        r.contexts.upstream.head = buf;
        r.contexts.upstream.headers = match &mut answer {
            Ok(answer) => std::mem::take(&mut answer.headers),
            // Header lines that were parsed before the failure are shown in variables.
            Err(_) => protocol.reader().lines(),
        };
        seen::forget_duplicates(r);
        if answer.is_err() {
            transport.count(r);
        }
        let answer = answer?;
        let now = r.event_loop.handle.now();
        if let Some(attempt) = r.contexts.upstream.attempt() {
            attempt.header = Some(now.saturating_duration_since(attempt.started));
            attempt.status = answer.shown_status();
        }
        Ok((Talk { transport, rest }, answer))
    }

    /// Records that no server is available.
    fn no_server(&self, r: &mut Request) -> Fault {
        let who = Who::Group(self.group.clone());
        let mut attempt = Attempt::new(Some(who), r.event_loop.handle.now());
        attempt.status = 502;
        r.contexts.upstream.attempts.push(attempt);
        complain(r, "no live upstreams", Doing::Connecting);
        Fault::Nobody
    }

    /// Notes the chosen peer.
    fn picked(&mut self, r: &mut Request, picked: Picked) -> Arc<Peer> {
        let peer = picked.peer.clone();
        self.picked = Some(picked);
        let counts = COUNTS.of(&r.event_loop);
        self.asked = self.upstream.and_then(|_| counts.passed(&self.group, &peer));
        if let Some(binding) = &mut self.binding {
            binding.cookie = binding.sticky.cookie(r, &peer);
        }
        peer
    }

    /// Begins an attempt with this peer. Returns the tag of its connection.
    fn begin_attempt(&mut self, r: &mut Request, peer: &Arc<Peer>) -> Tag {
        self.attempts += 1;
        let local = self.limits().is_some_and(|limits| limits.local);
        let mut tag = connect::tag(r, self.passing, self.secure(), local);
        tag.from = self.selection.as_ref().and_then(|selection| selection.from).or(tag.from);
        let now = r.event_loop.handle.now();
        r.contexts.upstream.attempts.push(Attempt::new(Some(Who::Peer(peer.clone())), now));
        tag
    }

    /// Takes an idle connection from the pool.
    fn kept(&mut self, r: &Request, peer: &Arc<Peer>, tag: Tag) -> Option<Box<Connection>> {
        self.limits()?;
        let kept = self.pool.as_ref()?.take(&r.event_loop.handle, peer, tag)?;
        self.pooled = true;
        self.asked.iter().for_each(|asked| asked.over(true));
        Some(kept)
    }

    /// Opens a connection or a stream.
    async fn open<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &P,
        peer: &Arc<Peer>,
        tag: Tag,
    ) -> Result<Transport, Fault> {
        if self.shared {
            return self.open_stream(r, protocol, peer, tag).await.map(Transport::Stream);
        }
        let (secure, shared) = (self.secure(), self.pool.is_some() && self.limits().is_some());
        let connection = connect::connect(r, self.passing, peer, secure, tag, shared).await?;
        self.asked.iter().for_each(|asked| asked.over(false));
        Ok(Transport::Own(connection))
    }

    /// Opens a stream on a shared connection, which sends the head of the request.
    async fn open_stream<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &P,
        peer: &Arc<Peer>,
        tag: Tag,
    ) -> Result<Stream, Fault> {
        let shared = self.links.as_ref().filter(|_| self.excused < EXCUSES).zip(self.limits());
        let secure = self.secure();
        let body = match protocol.sends_body() {
            true if self.streams => u64::MAX,
            true => r.body.len(),
            false => 0,
        };
        let body = body.saturating_add(self.outgoing.body.len() as u64);
        let (link, pooled) = http2::open(r, self.passing, peer, secure, tag, body, shared).await?;
        self.pooled = pooled;
        self.asked.iter().for_each(|asked| asked.over(pooled));
        self.started = true;
        let ended = body == 0 && !ends_apart(r, protocol);
        Ok(link.open(&self.outgoing.bytes, ended, Room::of(self.passing)))
    }

    /// Chooses a peer. If none is free, waits in the group's queue.
    async fn pick_in_turn(
        &mut self,
        r: &mut Request,
        conf: &QueueSettings,
    ) -> Result<Option<Picked>, Fault> {
        let before = self.choice.clone();
        // A new request must not overtake requests in the queue.
        if self.group.queue.is_empty()
            && let Some(picked) = self.group.pick(&mut self.choice, r.event_loop.handle.now())
        {
            return Ok(Some(picked));
        }
        self.choice = before;
        waiting::wait(r, self.passing, &self.group, &mut self.choice, conf).await
    }

    /// Sends as much of the request as goes out at once.
    fn send<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &P,
        transport: &Transport,
    ) -> Result<Sent, Fault> {
        let mut chain = Chain::new();
        let connection = match transport {
            Transport::Own(connection) => connection,
            Transport::Stream(stream) => {
                if self.streams {
                    // The part of the body that was sent on a connection which ended before the
                    // server processed it.
                    r.body.append_to(&mut chain);
                    return Ok(Sent::Begun(chain));
                }
                chain.push(self.outgoing.body.clone());
                if protocol.sends_body() {
                    r.body.append_to(&mut chain);
                }
                if !chain.is_empty() || ends_apart(r, protocol) {
                    stream.send_all(chain, self.passing.send_within(r));
                }
                return Ok(Sent::All);
            }
        };
        chain.push(self.outgoing.bytes.clone());
        if !self.streams && protocol.sends_body() {
            protocol.frame_whole(&r.body, &mut chain);
        }
        self.started = true;
        if self.streams {
            let _ = connection.stream.socket().nodelay(true);
            return Ok(Sent::Begun(chain));
        }
        Ok(upload::whole(r, connection, chain)?.map_or(Sent::All, Sent::Part))
    }
}

/// How much of a request was sent at once.
enum Sent {
    All,
    /// This rest is to be sent.
    Part(Box<UnsentRequest>),
    /// This beginning is to be sent, and then the client's body as it is received.
    Begun(Chain),
}

/// Whether the client ended its request with an empty frame after the head. The server gets the
/// same.
fn ends_apart<P: Protocol>(r: &Request, protocol: &P) -> bool {
    protocol.sends_body() && r.body.ends_apart()
}

/// Drops the head of another server's answer.
fn forget(r: &mut Request) {
    let context = &mut r.contexts.upstream;
    context.headers.clear();
    let head = std::mem::take(&mut context.head);
    if head.capacity() > 0 {
        r.event_loop.handle.give_buf(head);
    }
}

/// The answer of a tunnel, which consists of the connection.
fn opened(r: &mut Request, transport: Transport) -> (Talk, Answer) {
    let context = &mut r.contexts.upstream;
    context.head.clear();
    context.headers.clear();
    if let Some(attempt) = context.attempt() {
        (attempt.header, attempt.status) = (attempt.connect, 200);
    }
    (Talk { transport, rest: None }, Answer { status: 200, ..Answer::default() })
}
