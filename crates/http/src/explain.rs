//! What becomes of a request up to the location that serves it: the site itself answers it, on a loop of its own, with all handlers
//! left out that would count, judge or answer it, and with nothing that is logged, opened or asked elsewhere.

use std::cell::RefCell;
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_conf::Pos;
use weir_engine::{Chain, Driver, Handle, ListenerKey, Loop, Options, Patience, Stream, Turn};
use weir_log::{Level, Log, MemoryLog, Sink};
use weir_metrics::Registry;
use weir_metrics::subjects::Cells;
use weir_ssl::Handed;
use weir_sys::lent::Lent;
use weir_sys::shared::SharedWords;
use weir_tls::{Ciphers, ClientSettings, Curves, Secured, Versions, Wire};

use crate::config::scope::Scope;
use crate::modules::{fastcgi, lua, proxy, rewrite, scgi, uwsgi};
use crate::phases::{Handler, Step};
use crate::request::Request;
use crate::request::step::Named;
use crate::site::settings::LocationConf;
use crate::upstream::cache::explain::explain;
use crate::{Address, Identity, LoopState, Site};

/// What a request went through.
#[derive(Debug, Default)]
pub struct Course {
    /// The blocks with code that has run, in order.
    pub steps: Vec<Passed>,
    /// The block with the settings in force at last; none where the answer came before.
    pub arrived: Option<Passed>,
    /// What the location's cache has for the request, and would do with the answer that was given.
    pub cache: Vec<String>,
}

/// A block that a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Its server's block.
    pub server: Pos,
    /// The block itself, which may be the server's.
    pub block: Option<Pos>,
    /// The path as it was then.
    pub path: Vec<u8>,
    /// What follows the `?`.
    pub args: Vec<u8>,
    /// What its code has done.
    pub notes: Vec<String>,
}

thread_local! {
    static COURSE: RefCell<Course> = RefCell::default();
    /// The head of an answer that the server might give.
    static ANSWER: RefCell<Option<SupposedAnswer>> = const { RefCell::new(None) };
    /// What was logged, and how much of it was seen.
    static NOTES: RefCell<Option<(Arc<MemoryLog>, usize)>> = const { RefCell::new(None) };
}

/// A request, and where it comes in.
#[derive(Debug, Clone)]
pub struct Question {
    /// The site's listening socket, by its place in the list.
    pub listen: usize,
    /// The address that the client has connected to.
    pub local: Address,
    /// With TLS, for this name.
    pub secure: Option<Vec<u8>>,
    /// The request as it is sent; it has to end its connection.
    pub request: Vec<u8>,
    /// How the server behind might answer.
    pub answer: Option<SupposedAnswer>,
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupposedAnswer {
    /// Its status.
    pub status: u16,
    /// Its fields, a line each.
    pub fields: Vec<u8>,
}

/// Has the site serve a request: what it went through, and what came back.
pub fn follow(mut site: Site, question: Question) -> io::Result<(Course, Vec<u8>)> {
    let memory = MemoryLog::new(ROOM).ok_or(io::ErrorKind::OutOfMemory)??;
    let memory = Arc::new(memory);
    NOTES.set(Some((memory.clone(), 0)));
    COURSE.take();
    ANSWER.set(question.answer);
    quieten(&mut site, &Arc::new(Log::new(vec![(Level::Notice, Sink::Memory(memory))])));
    let (client, server) = UnixStream::pair()?;
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    let mut own = Loop::new(&Options::default())?;
    let handle = own.handle();
    let words = SharedWords::new(Registry::words_for(1))?;
    let registry = Registry::new(Box::leak(Box::new(words)));
    // Not the first loop, which would look after caches, names and servers of the site.
    let identity = Identity { pid: 1, worker: 0, workers: 1, index: 1 };
    let tally = registry.tally(0).map(Rc::new).ok_or(io::ErrorKind::OutOfMemory)?;
    let cells = Rc::new(Cells::new(registry, 0));
    let site = Lent::new(Arc::new(site));
    let protocols = site.shared().protocols_at(question.listen, question.local.ip());
    let protocols = protocols.unwrap_or_default();
    let event_loop = LoopState::new(handle.clone(), site, identity, tally, cells);
    let handed = Handed {
        wire: Wire::Plain(handle.stream(server.into())?),
        shown: None,
        peer: PEER.parse().map_or(Address::Unknown, Address::Inet),
        local: question.local,
        proxy: None,
        bytes: if protocols.proxy_protocol { PROXY.to_vec() } else { Vec::new() },
        times: 1,
    };
    event_loop.take_over(handed, question.listen);
    let stream = handle.stream(client.into())?;
    let heard = Rc::new(RefCell::new(Ok(Vec::new())));
    let told = heard.clone();
    handle.spawn(async move {
        let answer = ask(stream, question.secure.as_deref(), question.request).await;
        drop(told.replace(answer));
    });
    own.run(&mut UntilDone { by: Instant::now() + PATIENCE })?;
    Ok((COURSE.take(), heard.replace(Ok(Vec::new()))?))
}

/// Sends a request, and answers what comes back.
async fn ask(stream: Stream, secure: Option<&[u8]>, request: Vec<u8>) -> io::Result<Vec<u8>> {
    let secured = match secure {
        Some(name) => {
            let client = anyone().map_err(io::Error::other)?.named(name);
            let until = stream.handle().now() + PATIENCE;
            let secured = Secured::connect(&stream, &client, until).await;
            Some(secured.map_err(|e| io::Error::other(format!("no TLS: {e}")))?)
        }
        None => None,
    };
    let wire = Wire::join(stream, secured);
    let mut chain = Chain::new();
    chain.push(Bytes::from(request));
    wire.send(&mut chain, Patience::Idle(PATIENCE)).await?;
    let mut all = Vec::new();
    loop {
        all.reserve(READ);
        #[expect(clippy::disallowed_methods, reason = "an answer, by the client that asks here")]
        let (read, back) = wire.recv(all).await;
        all = back;
        // A connection that is closed without an alert has said all the same.
        if !matches!(read, Ok(n) if n > 0) || all.len() > LONGEST {
            return Ok(all);
        }
    }
}

/// A client that believes every certificate: it sends nothing of value to the server.
fn anyone() -> Result<weir_tls::TlsClient, weir_tls::TlsError> {
    let settings = ClientSettings {
        versions: Versions::default(),
        ciphers: Ciphers::default(),
        curves: Curves::default(),
        identity: None,
        authorities: None,
        names: Arc::default(),
        send_name: true,
        reuse: false,
        alpn: vec![b"http/1.1".to_vec()],
    };
    settings.build()
}

/// Where the request comes from, as a balancer in front says it, too.
const PEER: &str = "127.0.0.1:1";
const PROXY: &[u8] = b"PROXY TCP4 127.0.0.1 127.0.0.1 1 1\r\n";
const READ: usize = 4096;
const LONGEST: usize = 1 << 20;

/// Room for what is noted of one request.
const ROOM: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a loop until its one connection has ended.
struct UntilDone {
    by: Instant,
}

impl Driver for UntilDone {
    fn before_wait(&mut self, _: &Handle, now: Instant) -> Option<Duration> {
        Some(self.by.saturating_duration_since(now))
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}

    fn end_of_turn(&mut self, h: &Handle, turn: &Turn) {
        if (h.tasks(), h.parked()) == (0, 0) || turn.woke >= self.by {
            h.stop();
        }
    }
}

/// Leaves in what decides where a request goes, and takes out all else.
fn quieten(site: &mut Site, log: &Arc<Log>) {
    lua::SCRIPTS.replace(&mut site.main_confs, lua::Scripts::default());
    silence(&mut site.main, log);
    for location in site.locations_mut() {
        silence(&mut location.conf, log);
        let plan = &mut location.plan;
        let decides = |all: &[Named<Handler>]| -> Vec<Named<Handler>> {
            all.iter().filter(|handler| DECIDES.contains(&handler.module)).copied().collect()
        };
        let entered =
            |all: &[Named<Handler>]| [vec![now(enter)], decides(all)].concat().into_boxed_slice();
        plan.post_read = decides(&plan.post_read).into();
        plan.server_rewrite = entered(&plan.server_rewrite);
        plan.rewrite = entered(&plan.rewrite);
        plan.rewritten = decides(&plan.rewritten).into();
        plan.preaccess = Box::new([now(arrive)]);
        (plan.access, plan.precontent) = (Box::default(), Box::default());
        (plan.content, plan.log) = (Box::default(), Box::default());
        plan.header_filters = plan
            .header_filters
            .iter()
            .filter(|filter| filter.module.is_empty() || filter.module == "headers_filter")
            .copied()
            .collect();
    }
}

/// The modules with handlers that decide where a request goes; scripts may do anything, and are
/// left out.
const DECIDES: &[&str] = &["realip", "rewrite", "headers_more_filter"];

fn silence(conf: &mut LocationConf, log: &Arc<Log>) {
    let core = Scope::change(&mut conf.core);
    core.error_log = log.clone();
    core.post_action = Default::default();
    rewrite::tell(rewrite::CONF.change(conf));
}

fn now(run: fn(&mut Request) -> Step) -> Named<Handler> {
    Named { module: "", run: Handler::Now(run) }
}

/// A block's code begins.
fn enter(r: &mut Request) -> Step {
    note(r);
    COURSE.with_borrow_mut(|course| course.steps.push(here(r)));
    Step::Next
}

/// A location has been found for good.
fn arrive(r: &mut Request) -> Step {
    note(r);
    COURSE.with_borrow_mut(|course| {
        course.arrived.get_or_insert(here(r));
    });
    let cache = cache(r);
    COURSE.with_borrow_mut(|course| course.cache = cache);
    r.response.status = 204;
    Step::Respond(Bytes::new())
}

/// What the cache of the location says.
fn cache(r: &mut Request) -> Vec<String> {
    let all = [proxy::cached, fastcgi::cached, uwsgi::cached, scgi::cached];
    let Some((passing, text)) = all.into_iter().find_map(|cached| cached(r)) else {
        return Vec::new();
    };
    let answer = ANSWER.take();
    let fields: Vec<_> = answer.iter().flat_map(|a| weir_cache::fields(&a.fields)).collect();
    let answer = answer.as_ref().map(|answer| (answer.status, fields.as_slice()));
    explain(r, passing, text, answer)
}

/// What was logged since is of the block before.
fn note(_: &Request) {
    let notes = newer();
    COURSE.with_borrow_mut(|course| {
        if let Some(last) = course.steps.last_mut() {
            last.notes.extend(notes);
        }
    });
}

fn here(r: &Request) -> Passed {
    Passed {
        server: r.server.at.pos(),
        block: r.location.at,
        path: r.path.clone(),
        args: r.args.clone(),
        notes: Vec::new(),
    }
}

/// What was logged and not seen yet, without its subject.
fn newer() -> Vec<String> {
    NOTES.with_borrow_mut(|notes| {
        let Some((memory, seen)) = notes else { return Vec::new() };
        let all = memory.newest(ROOM as usize);
        let text = String::from_utf8_lossy(all.get(*seen..).unwrap_or_default()).into_owned();
        *seen = all.len();
        text.lines().map(bare).collect()
    })
}

fn bare(line: &str) -> String {
    let text = line.split_once(": *").and_then(|(_, rest)| rest.split_once(' '));
    let text = text.map_or(line, |(_, text)| text);
    text.split(", client: ").next().unwrap_or(text).to_owned()
}
