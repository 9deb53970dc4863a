//! Follows a request up to the location that serves it. The site itself serves it, on a loop of its
//! own. Handlers that would count, check or answer it are left out, and nothing is logged, opened
//! or requested elsewhere.

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
use weir_ssl::HandedConnection;
use weir_sys::lent::Lent;
use weir_sys::shared::SharedWords;
use weir_tls::{Ciphers, ClientSettings, Curves, Secured, Versions, Wire};

use crate::config::scope::Scope;
use crate::modules::{fastcgi, lua, proxy, rewrite, scgi, uwsgi};
use crate::phases::{Handler, Step};
use crate::request::Request;
use crate::request::step::{HeaderFilter, Named};
use crate::site::settings::LocationConf;
use crate::upstream::cache::explain::explain;
use crate::{Address, Identity, LoopState, Site};

/// The course of a request.
#[derive(Debug, Default)]
pub struct Course {
    /// The blocks whose code has run, in order.
    pub steps: Vec<Passed>,
    /// The block with the final settings. `None` if the request was answered before.
    pub arrived: Option<Passed>,
    /// The block with the settings of an earlier answer.
    pub answered: Option<Passed>,
    /// The reason for that answer, if no directive is the reason.
    pub reason: Option<String>,
    /// What the location's cache has for the request, and what it would do with the supposed
    /// answer.
    pub cache: Vec<String>,
}

/// A block on the course of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// The server's block.
    pub server: Pos,
    /// The block itself, which may be the server's.
    pub block: Option<Pos>,
    /// The path at that point.
    pub path: Vec<u8>,
    /// The query string.
    pub args: Vec<u8>,
    /// The notes of its code.
    pub notes: Vec<String>,
    /// The directive that has answered.
    pub answer: Option<Pos>,
}

thread_local! {
    static COURSE: RefCell<Course> = RefCell::default();
    /// The supposed answer of the upstream server.
    static ANSWER: RefCell<Option<SupposedAnswer>> = const { RefCell::new(None) };
    /// The log, and how much of it was processed.
    static NOTES: RefCell<Option<(Arc<MemoryLog>, usize)>> = const { RefCell::new(None) };
}

/// The request to follow.
#[derive(Debug, Clone)]
pub struct Question {
    /// The index of the site's listening socket.
    pub listen: usize,
    /// The address that the client has connected to.
    pub local: Address,
    /// With TLS: the server name.
    pub secure: Option<Vec<u8>>,
    /// The request as it is sent. It must close its connection.
    pub request: Vec<u8>,
    /// The supposed answer of the upstream server.
    pub answer: Option<SupposedAnswer>,
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupposedAnswer {
    /// The status.
    pub status: u16,
    /// The header lines.
    pub fields: Vec<u8>,
}

/// Follows a request. Returns its course and the response.
pub fn follow(mut site: Site, question: Question) -> io::Result<(Course, Vec<u8>)> {
    let memory = MemoryLog::new(ROOM).ok_or(io::ErrorKind::OutOfMemory)??;
    let memory = Arc::new(memory);
    NOTES.set(Some((memory.clone(), 0)));
    COURSE.take();
    ANSWER.set(question.answer);
    quieten(&mut site, &Arc::new(Log::new(vec![(Level::Info, Sink::Memory(memory))])));
    let (client, server) = UnixStream::pair()?;
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    let mut own = Loop::new(&Options::default())?;
    let handle = own.handle();
    let words = SharedWords::new(Registry::words_for(1))?;
    let registry = Registry::new(Box::leak(Box::new(words)));
    // The first loop would run background work for caches, names and servers of the site.
    let (has_master, agent) = (true, false);
    let identity = Identity { pid: 1, worker: 0, workers: 1, index: 1, has_master, agent };
    let tally = registry.tally(0).map(Rc::new).ok_or(io::ErrorKind::OutOfMemory)?;
    let cells = Rc::new(Cells::new(registry, 0));
    let site = Lent::new(Arc::new(site));
    let protocols = site.shared().protocols_at(question.listen, question.local.ip());
    let protocols = protocols.unwrap_or_default();
    if question.secure.is_some() && !protocols.ssl {
        return Err(io::Error::other("there is no TLS at this port: its listen has no ssl"));
    }
    let event_loop = LoopState::new(handle.clone(), site, identity, tally, cells);
    let handed = HandedConnection {
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
    note_the_end();
    Ok((COURSE.take(), heard.replace(Ok(Vec::new()))?))
}

/// Sends a request and receives the response.
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
        // A connection that is closed without an alert still has a valid response.
        if !matches!(read, Ok(n) if n > 0) || all.len() > LONGEST {
            return Ok(all);
        }
    }
}

/// A TLS client that accepts every certificate. It sends nothing confidential.
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

/// The client's address, also in the PROXY protocol header.
const PEER: &str = "127.0.0.1:1";
const PROXY: &[u8] = b"PROXY TCP4 127.0.0.1 127.0.0.1 1 1\r\n";
const READ: usize = 4096;
const LONGEST: usize = 1 << 20;

/// The maximum length of the notes of a request.
const ROOM: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a loop until its connection has ended.
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

/// Removes everything that does not decide on the location of a request.
fn quieten(site: &mut Site, log: &Arc<Log>) {
    lua::SCRIPTS.replace(&mut site.main_confs, lua::Scripts::default());
    lua::SESSIONS.replace(&mut site.main_confs, lua::StreamScripts::default());
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
        let kept = plan.header_filters.iter();
        let kept =
            kept.filter(|filter| filter.module.is_empty() || filter.module == "headers_filter");
        let own = Named { module: "", run: answer as HeaderFilter };
        plan.header_filters = kept.copied().chain([own]).collect();
    }
}

/// The modules whose handlers decide on the location. Scripts may do anything and are left out.
const DECIDES: &[&str] = &["realip", "rewrite", "headers_more_filter"];

fn silence(conf: &mut LocationConf, log: &Arc<Log>) {
    let core = Scope::change(&mut conf.core);
    core.error_log = log.clone();
    core.post_action = Default::default();
    rewrite::trace(rewrite::CONF.change(conf), answer_by);
}

fn now(run: fn(&mut Request) -> Step) -> Named<Handler> {
    Named { module: "", run: Handler::Now(run) }
}

/// Called when the code of a block begins.
fn enter(r: &mut Request) -> Step {
    note();
    COURSE.with_borrow_mut(|course| {
        let mut step = here(r);
        let page = error_page(r);
        let is_new = |page: &String| !course.steps.iter().any(|step| step.notes.contains(page));
        step.notes.extend(page.filter(is_new));
        course.steps.push(step);
    });
    Step::Next
}

/// The note if the request is for an error page.
fn error_page(r: &Request) -> Option<String> {
    match r.error_status {
        0 => r.error_page.then(|| "as an error page".to_owned()),
        status => Some(format!("as an error page, with status {status}")),
    }
}

/// Called before a directive answers.
fn answer_by(r: &Request, line: Pos) {
    note();
    COURSE.with_borrow_mut(|course| {
        if let Some(last) = course.steps.last_mut() {
            last.answer = Some(line);
        }
        course.answered = Some(here(r));
    });
}

/// Called before a response is sent, with its block's settings.
fn answer(r: &mut Request) -> Result<(), Step> {
    COURSE.with_borrow_mut(|course| {
        if course.arrived.is_none() {
            course.answered = Some(here(r));
            course.reason = reason(r);
        }
    });
    Ok(())
}

/// The reason of a location's own answer, if the log does not say it.
fn reason(r: &Request) -> Option<String> {
    let location = &r.location;
    let text = match r.response.status {
        404 if location.conf.core.internal && !r.internal => {
            "the location is internal: clients cannot ask for it"
        }
        301 if location.name.strip_suffix(b"/") == Some(&r.path) => {
            "the path is the location's without the slash at its end, which is added"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// Called in the final location.
fn arrive(r: &mut Request) -> Step {
    note();
    COURSE.with_borrow_mut(|course| {
        course.arrived.get_or_insert(here(r));
    });
    let cache = cache(r);
    COURSE.with_borrow_mut(|course| course.cache = cache);
    r.response.status = 204;
    Step::Respond(Bytes::new())
}

/// The notes about the location's cache.
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

/// Assigns new log lines to the last block.
fn note() {
    let notes = newer().into_iter().map(|(_, text)| text);
    COURSE.with_borrow_mut(|course| {
        if let Some(last) = course.steps.last_mut() {
            last.notes.extend(notes);
        }
    });
}

/// Assigns the last log lines: effects of the code to the last block, and errors to the reason of
/// the answer.
fn note_the_end() {
    let (notes, errors): (Vec<_>, Vec<_>) =
        newer().into_iter().partition(|(level, _)| level == NOTED);
    COURSE.with_borrow_mut(|course| {
        if let Some(last) = course.steps.last_mut() {
            last.notes.extend(notes.into_iter().map(|(_, text)| text));
        }
        if course.arrived.is_none() && course.reason.is_none() {
            course.reason = errors.into_iter().next().map(|(_, text)| text);
        }
    });
}

/// The level of `rewrite_log`.
const NOTED: &str = "notice";

fn here(r: &Request) -> Passed {
    Passed {
        server: r.server.at.pos(),
        block: r.location.at,
        path: r.path.clone(),
        args: r.args.clone(),
        notes: Vec::new(),
        answer: None,
    }
}

/// The new log lines: level, and text without its prefix.
fn newer() -> Vec<(String, String)> {
    NOTES.with_borrow_mut(|notes| {
        let Some((memory, seen)) = notes else { return Vec::new() };
        let all = memory.newest(ROOM as usize);
        let text = String::from_utf8_lossy(all.get(*seen..).unwrap_or_default()).into_owned();
        *seen = all.len();
        text.lines().map(bare).collect()
    })
}

fn bare(line: &str) -> (String, String) {
    let level = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let level = level.map_or("", |(level, _)| level).to_owned();
    let text = line.split_once(": *").and_then(|(_, rest)| rest.split_once(' '));
    let text = text.map_or(line, |(_, text)| text);
    (level, text.split(", client: ").next().unwrap_or(text).to_owned())
}
