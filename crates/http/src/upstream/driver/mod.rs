//! Passes a request to servers: chooses a server, sends the request, reads the answer, and decides
//! whether to ask another server.

mod answer;
mod ask;
mod choosing;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::Method;
use weir_upstream::{Choice, Ended, Failure, Group, Limits, PeerTimes, Picked, Pool, Sent};

use crate::phases::Step;
use crate::request::Request;
use crate::request::passed::{Attempt, ChosenTimes, Current};
use crate::upstream::choosing::Selection;
use crate::upstream::counts::Asked;
use crate::upstream::fault::{Doing, Fault};
use crate::upstream::groups::{GROUPS, GroupId, HashKey, Upstream};
use crate::upstream::http2::Links;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::pools::POOLS;
use crate::upstream::protocol::{Answer, Outgoing, Protocol, Reader};
use crate::upstream::sticky::{Bound, Sticky};
use crate::upstream::tls::UpstreamTls;
use crate::upstream::transport::Transport;
use crate::upstream::upload::UnsentRequest;
use crate::upstream::url::Url;
use crate::upstream::{cache, client, destination};

/// The target of a request.
#[derive(Clone)]
pub enum Target {
    /// A group of the configuration.
    Configured(GroupId),
    /// Addresses that were resolved for this request.
    Found(Arc<Group>),
    /// A URL and its default port. It is resolved only if the cache does not have the answer.
    Url(Box<Url>, u16),
}

/// Serves a request from the cache or a server.
pub async fn serve<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    target: Target,
    protocol: &mut P,
) -> Step {
    r.contexts.upstream.begin();
    let update = cache::UPDATE.take(&mut r.contexts);
    let mut place = None;
    if passing.caching.is_on() {
        match Boxed::new(|| cache::look(r, passing, protocol, update)).await {
            cache::LookupResult::Done(step) => return step,
            cache::LookupResult::Ask(state) => place = state,
        }
        protocol.reader().restart();
    }
    if let Some(place) = place.take_if(|place| place.has_begun()) {
        return Box::pin(ask_for_rest(r, passing, target, protocol, place)).await;
    }
    ask(r, passing, target, protocol, place).await
}

/// Asks a server for the rest of an answer whose beginning the client has. On failure the request
/// is aborted, since no other answer can follow.
async fn ask_for_rest<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    target: Target,
    protocol: &mut P,
    place: Box<cache::State>,
) -> Step {
    protocol.reader().restart();
    match ask(r, passing, target, protocol, Some(place)).await {
        Step::Sent => Step::Sent,
        _ => Step::Abort,
    }
}

/// Asks servers. `place`: the request's state in a cache.
async fn ask<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    target: Target,
    protocol: &mut P,
    place: Option<Box<cache::State>>,
) -> Step {
    let target = match target {
        Target::Url(url, port) => match Box::pin(destination::target(r, passing, &url, port)).await
        {
            Ok(target) => target,
            Err(step) => return step,
        },
        known => known,
    };
    let again = target.clone();
    let mut run = match Run::begin(r, passing, target, protocol) {
        Ok(run) => run,
        Err(step) => return step,
    };
    run.place = place;
    let (talk, mut answer) = loop {
        let fault = match run.attempt(r, protocol).await {
            Ok((talk, answer)) => match run.judge(r, &answer) {
                None => break (talk, answer),
                Some(fault) => {
                    run.leave(r, talk, &answer, protocol);
                    fault
                }
            },
            Err(fault) => fault,
        };
        let (mut failure, excused) = (fault.failure(), run.excused);
        let mut end = run.settle(r, fault);
        let pause = if run.excused == excused { passing.retry_delay } else { Duration::ZERO };
        if end.is_none() && r.contexts.upstream.is_late(r.event_loop.handle.now() + pause) {
            failure = Fault::Peer(Failure::Timeout).failure();
            end = Some(Step::Status(504));
        }
        if client::has_left(r) {
            (failure, end) = (None, Some(Step::Status(Fault::ClientLeft.status())));
        }
        if let Some(step) = end {
            r.contexts.upstream.answer_until = None;
            run.bind(r);
            let place = run.place.take();
            return Box::pin(cache::after_failure(r, place, passing, protocol, failure, step))
                .await;
        }
        if !pause.is_zero() {
            Box::pin(r.event_loop.handle.sleep(pause)).await;
        }
        protocol.reader().restart();
    };
    r.contexts.upstream.answer_until = None;
    let step = run.answer(r, protocol, talk, &mut answer).await;
    let Some(place) = run.place.take_if(|place| place.has_begun()) else { return step };
    drop(run);
    Box::pin(ask_for_rest(r, passing, again, protocol, place)).await
}

/// A connection to a server on which the request was sent.
struct Talk {
    transport: Transport,
    /// The part of the request that was not sent yet.
    rest: Option<Box<UnsentRequest>>,
}

impl Talk {
    /// Whether the client's body is still being passed on while the answer arrives. Such an answer
    /// is not stored: a stored answer is read to its end even if the client leaves.
    fn goes_both_ways(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.goes_on())
    }
}

/// How the request is bound to a server (`sticky`).
struct Binding {
    sticky: &'static Sticky,
    bound: Bound,
    /// The cookie that binds the client to the present server.
    cookie: Option<Vec<u8>>,
}

struct Run {
    passing: &'static UpstreamConf,
    group: Arc<Group>,
    /// The group's configuration.
    upstream: Option<&'static Upstream>,
    binding: Option<Box<Binding>>,
    /// The choices of a script, if one chooses the servers.
    selection: Option<Box<Selection>>,
    /// The group's keepalive limits.
    limits: Option<&'static Limits>,
    pool: Option<Rc<Pool>>,
    /// The group's multiplexed connections.
    links: Option<Rc<Links>>,
    choice: Choice,
    outgoing: Outgoing,
    /// The TLS settings, if TLS is used.
    secure: Option<Box<UpstreamTls>>,
    streams: bool,
    /// Requests share connections (HTTP/2).
    shared: bool,
    /// Attempts so far, without excused ones.
    attempts: u32,
    began: Instant,
    picked: Option<Picked>,
    /// The counters of a server of the configuration.
    asked: Option<Asked>,
    /// A part of the request was sent.
    started: bool,
    /// The connection had served other requests.
    pooled: bool,
    /// How often a kept or shared connection failed, which does not count as an attempt.
    excused: u32,
    /// The request's state in a cache.
    place: Option<Box<cache::State>>,
}

/// After this many excused failures, a new connection is opened for the request alone. Its failure
/// counts as an attempt.
const EXCUSES: u32 = 2;

impl Run {
    /// Serializes the request, once for all attempts.
    fn begin<P: Protocol>(
        r: &mut Request,
        passing: &'static UpstreamConf,
        target: Target,
        protocol: &mut P,
    ) -> Result<Run, Step> {
        let (streams, shared) = (protocol.streams(r), protocol.is_shared());
        let outgoing = write(r, protocol).map_err(Step::Status)?;
        r.contexts.upstream.times = ChosenTimes::default();
        let limit = Some(passing.answer_timeout).filter(|limit| !limit.is_zero());
        r.contexts.upstream.answer_until = limit.map(|limit| r.event_loop.handle.now() + limit);
        let secure = protocol.secure(r).map(Box::new);
        let (group, upstream, limits, pool, links) = match target {
            Target::Found(group) => (group, None, None, None, None),
            // `ask` has resolved the URL.
            Target::Url(..) => return Err(Step::Status(500)),
            Target::Configured(id) => {
                let Some(upstream) = GROUPS.of(&r.site.main_confs).get(id) else {
                    r.log(Level::Alert, format_args!("no upstream configuration"));
                    return Err(Step::Status(500));
                };
                let limits = upstream.keepalive.as_ref();
                let limits = limits.filter(|_| !(shared && r.event_loop.retiring()));
                let pools = POOLS.of(&r.event_loop);
                let (pool, links) = match shared {
                    true => (None, pools.links(id)),
                    false => (pools.of(id), None),
                };
                (upstream.group.clone(), Some(upstream), limits, pool, links)
            }
        };
        let mut choice = Choice::new(upstream.map_or_else(Vec::new, |u| key(r, &u.key)));
        let chooser = upstream.and_then(|u| u.extras.chooser.as_ref());
        let selection = chooser.map(|_| Box::new(Selection::new(secure.is_some())));
        let binding = upstream.and_then(|u| u.extras.sticky.as_ref()).map(|sticky| {
            let (bound, sid) = sticky.bound(r);
            choice.bound = sid;
            Box::new(Binding { sticky, bound, cookie: None })
        });
        if !r.contexts.upstream.attempts.is_empty() {
            // Another location has proxied the request before. An empty attempt separates the two
            // in variables.
            let between = Attempt::new(None, r.event_loop.handle.now());
            r.contexts.upstream.attempts.push(between);
        }
        Ok(Run {
            passing,
            group,
            upstream,
            binding,
            selection,
            limits,
            pool,
            links,
            choice,
            outgoing,
            secure,
            streams,
            shared,
            attempts: 0,
            began: r.event_loop.handle.now(),
            picked: None,
            asked: None,
            started: false,
            pooled: false,
            excused: 0,
            place: None,
        })
    }

    /// Whether the answer's status is a failure after which another server is asked.
    fn judge(&self, r: &Request, answer: &Answer) -> Option<Fault> {
        if answer.status < 300 {
            return None;
        }
        let failure = Failure::Status(answer.status);
        let again = self.passing.retry.again(failure, self.sent(r, failure));
        again.then_some(Fault::Peer(failure))
    }

    fn sent(&self, r: &Request, failure: Failure) -> Sent {
        Sent {
            started: self.started,
            non_idempotent: matches!(r.method, Method::Post | Method::Lock | Method::Patch),
            // As in nginx, an unbuffered request ends with a server's failure. After a connection's
            // failure it may go on.
            streamed: self.streams && !(failure.is_of_connection() && r.body.is_kept()),
            left: self.tries().saturating_sub(self.attempts),
            elapsed: r.event_loop.handle.now().saturating_duration_since(self.began),
        }
    }

    /// Handles a failed attempt. Returns the end of the request, or `None` for another attempt.
    fn settle(&mut self, r: &mut Request, fault: Fault) -> Option<Step> {
        let now = r.event_loop.handle.now();
        if let Some(attempt) = r.contexts.upstream.attempt() {
            attempt.response = Some(now.saturating_duration_since(attempt.started));
        }
        let Fault::Peer(failure) = fault else {
            self.end(r, Ended::Next, None);
            return Some(Step::Status(fault.status()));
        };
        if let Some(selection) = &mut self.selection {
            selection.before = Some(failure);
        }
        let excuse = match failure {
            Failure::Error => self.pooled,
            Failure::Refused => self.pooled && self.excused < EXCUSES,
            Failure::Lost { .. } => self.excused < EXCUSES,
            _ => false,
        };
        if excuse {
            // The peer may close a kept connection at any time, so its failure does not count as an
            // attempt.
            self.attempts = self.attempts.saturating_sub(1);
            self.excused += 1;
        }
        if let (true, true, Some(picked)) = (excuse, failure.is_of_connection(), &self.picked) {
            self.choice.forgive(picked);
        }
        if matches!(failure, Failure::Lost { .. }) {
            // This request may be the one that ends connections, so its next connection is for it
            // alone.
            self.excused = EXCUSES;
        }
        self.end(r, Ended::by(failure), Some(failure));
        if let Some(attempt) = r.contexts.upstream.attempt() {
            attempt.status = failure.response();
        }
        let asked = self.asked.take();
        let mut sent = self.sent(r, failure);
        if excuse {
            // A request bound to a draining server has an attempt even if the group has none.
            sent.left = sent.left.max(1);
        }
        if self.passing.retry.again(failure, sent) {
            asked.iter().for_each(Asked::again);
            return None;
        }
        Some(Step::Status(failure.response()))
    }

    /// Returns the peer to the group.
    fn end(&mut self, r: &mut Request, how: Ended, failure: Option<Failure>) {
        let Some(picked) = self.picked.take() else { return };
        if let (Some(asked), Some(attempt)) = (&self.asked, r.contexts.upstream.attempt()) {
            asked.ended(attempt, how, failure, &r.event_loop.handle);
        }
        if self.group.ended(&picked, how, r.event_loop.handle.now()) {
            let doing = if self.started { Doing::ReadingHead } else { Doing::Connecting };
            let text = doing.text();
            r.log(Level::Warn, format_args!("upstream server temporarily disabled {text}"));
        }
    }

    /// Drops a server's answer. The connection is kept if the answer has no body.
    fn leave<P: Protocol>(&self, r: &Request, talk: Talk, answer: &Answer, protocol: &mut P) {
        let head = &r.contexts.upstream.head;
        let empty = !protocol.reader().has_body(r, answer);
        if empty && head.len() == answer.end && talk.rest.is_none() && answer.keepalive {
            self.keep(r, talk.transport);
        }
    }

    fn keep(&self, r: &Request, transport: Transport) {
        if let Some((pool, limits)) = self.pool.as_ref().zip(self.limits())
            && let Transport::Own(connection) = transport
            && !r.event_loop.retiring()
        {
            pool.give(&r.event_loop.handle, connection, limits);
        }
    }

    /// Ends the last attempt.
    fn over(&mut self, r: &mut Request, step: Step) -> Step {
        if let (Some(binding), Some(picked)) = (&self.binding, &self.picked) {
            binding.sticky.served(r, &binding.bound, &picked.peer);
        }
        let now = r.event_loop.handle.now();
        let mut times = PeerTimes::default();
        if let Some(attempt) = r.contexts.upstream.attempt() {
            attempt.ends(now);
            times = PeerTimes { first: attempt.header, last: attempt.response, ..times };
        }
        self.end(r, Ended::Well(times), None);
        self.asked = None;
        step
    }
}

impl Drop for Run {
    /// Returns the peer of a request that is dropped, such as a subrequest or after a panic.
    fn drop(&mut self) {
        if let Some(picked) = self.picked.take() {
            self.group.ended(&picked, Ended::Next, self.began);
        }
    }
}

/// Serializes the request. The error is the status for the client.
fn write<P: Protocol>(r: &mut Request, protocol: &mut P) -> Result<Outgoing, u16> {
    let mut outgoing = protocol.request(r).map_err(|error| {
        r.log(error.level(), format_args!("{error}"));
        error.status()
    })?;
    let (scheme, uri) = (protocol.scheme(), std::mem::take(&mut outgoing.uri));
    // As in nginx, log lines show no URI for multiplexed requests.
    let uri = if protocol.is_shared() { Bytes::new() } else { uri };
    r.contexts.upstream.current = Some(Current { scheme, uri });
    Ok(outgoing)
}

/// The key that the balancing method hashes.
fn key(r: &mut Request, key: &HashKey) -> Vec<u8> {
    match key {
        HashKey::Nothing => Vec::new(),
        HashKey::Value(template) => template.eval(r).into_owned(),
        HashKey::Address => match r.peer().ip() {
            Some(std::net::IpAddr::V4(ip)) => ip.octets()[..3].to_vec(),
            Some(std::net::IpAddr::V6(ip)) => ip.octets().to_vec(),
            None => vec![0; 3],
        },
    }
}

/// Reads the client's body before a server is asked, unless it is passed on unbuffered. The error
/// is the end of the request.
pub async fn read_body<P: Protocol>(r: &mut Request, protocol: &P) -> Result<(), Step> {
    if r.body.is_spent() {
        r.body.refuse();
    }
    if !protocol.streams(r) {
        r.read_body().await?;
    } else if r.check_body_received()? {
        // The whole body is here already. Taken as a read body, it can be sent more than once.
        r.take_body().await?;
    } else {
        r.send_continue().await?;
    }
    Ok(())
}
