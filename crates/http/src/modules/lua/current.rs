//! The running script: its request or session, its phase, and why it yields.
//!
//! The functions of `ngx` live as long as the VM, a request only as long as its handler. So the
//! handler lends its request to this thread for each step of the script, and takes it back while
//! the script waits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use scoped_tls_hkt::scoped_thread_local;

use weir_ssl::scripted::ScriptedSession;

use super::script::{Scripts, Side};
use super::socket::OwnSockets;
use super::yield_request::YieldRequest;
use super::{answer, session};
use crate::event_loop::LoopState;
use crate::request::Request;
use crate::site::Site;
use crate::site::settings::LocationConf;
use weir_engine::operation;

scoped_thread_local!(static mut REQUEST: Request);
scoped_thread_local!(static mut SESSION: for<'a> &'a mut Scripted);

thread_local! {
    static PHASE: Cell<Phase> = const { Cell::new(Phase::Init) };
    static SIDE: Cell<Side> = const { Cell::new(Side::Requests) };
    /// Whether lines of the running script are dropped, since they were logged before.
    static IS_MUTE: Cell<bool> = const { Cell::new(false) };
    /// The site of a thread that has no loop.
    static SITE: Cell<Option<&'static Site>> = const { Cell::new(None) };
    /// The running timer.
    static TIMER: RefCell<Option<Rc<TimerSubject>>> = const { RefCell::new(None) };
    /// Why the script yields. It is set right before the yield.
    static YIELD_REQUEST: RefCell<Option<YieldRequest>> = const { RefCell::new(None) };
}

/// A session, for its scripts.
pub type Scripted = dyn ScriptedSession + 'static;

/// What a script runs for: a request, a session, or neither.
pub enum Subject<'r> {
    /// The start or the end of a loop.
    Nothing,
    /// A timer.
    Timer(&'r Rc<TimerSubject>),
    /// A request.
    Request(&'r mut Request),
    /// A session.
    Session(&'r mut Scripted),
}

/// A call of a timer's function.
pub struct TimerSubject {
    /// The log's description of the client whose script set the timer.
    pub origin: Rc<str>,
    /// The settings where the timer was set.
    pub conf: &'static LocationConf,
    /// Sockets that close with the call, unless they are kept alive.
    pub sockets: OwnSockets,
}

impl Subject<'_> {
    /// Reborrows the subject.
    pub fn lend(&mut self) -> Subject<'_> {
        match self {
            Subject::Nothing => Subject::Nothing,
            Subject::Timer(timer) => Subject::Timer(timer),
            Subject::Request(r) => Subject::Request(r),
            Subject::Session(s) => Subject::Session(*s),
        }
    }

    /// The request, if there is one.
    pub fn request(&self) -> Option<&Request> {
        if let Subject::Request(r) = self { Some(r) } else { None }
    }

    /// The request for changes, if there is one.
    pub fn request_mut(&mut self) -> Option<&mut Request> {
        if let Subject::Request(r) = self { Some(r) } else { None }
    }
}

/// The phase of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// `init_by_lua`
    Init,
    /// `init_worker_by_lua`
    InitWorker,
    /// `exit_worker_by_lua`
    ExitWorker,
    /// `set_by_lua`
    Set,
    /// `server_rewrite_by_lua`
    ServerRewrite,
    /// `rewrite_by_lua`
    Rewrite,
    /// `access_by_lua`
    Access,
    /// `precontent_by_lua`
    Precontent,
    /// `content_by_lua`
    Content,
    /// `balancer_by_lua`
    Balancer,
    /// `header_filter_by_lua`
    HeaderFilter,
    /// `body_filter_by_lua`
    BodyFilter,
    /// `log_by_lua`
    Log,
    /// `ngx.timer`
    Timer,
    /// `ngx.run_worker_thread`
    WorkerThread,
    /// `ssl_client_hello_by_lua`
    ClientHello,
    /// `ssl_session_fetch_by_lua`
    SessionFetch,
    /// `ssl_session_store_by_lua`
    SessionStore,
    /// `ssl_certificate_by_lua`
    Certificate,
    /// `proxy_ssl_certificate_by_lua`
    ServerCertificate,
    /// `proxy_ssl_verify_by_lua`
    ServerVerify,
    /// `preread_by_lua` of a session
    Preread,
    /// `content_by_lua` of a session
    Session,
    /// `log_by_lua` of a session
    SessionLog,
}

impl Phase {
    /// `ngx.get_phase()`
    pub fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::InitWorker => "init_worker",
            Phase::ExitWorker => "exit_worker",
            Phase::Set => "set",
            Phase::ServerRewrite => "server_rewrite",
            Phase::Rewrite => "rewrite",
            Phase::Access => "access",
            Phase::Precontent => "precontent",
            Phase::Content => "content",
            Phase::Balancer => "balancer",
            Phase::HeaderFilter => "header_filter",
            Phase::BodyFilter => "body_filter",
            Phase::Log => "log",
            Phase::Timer => "timer",
            Phase::WorkerThread => "worker_thread",
            Phase::ClientHello => "ssl_client_hello",
            Phase::SessionFetch => "ssl_session_fetch",
            Phase::SessionStore => "ssl_session_store",
            Phase::Certificate => "ssl_cert",
            Phase::ServerCertificate => "proxy_ssl_cert",
            Phase::ServerVerify => "proxy_ssl_verify",
            Phase::Preread => "preread",
            Phase::Session => "content",
            Phase::SessionLog => "log",
        }
    }

    /// The directive of the phase, as in error messages.
    pub fn directive(self) -> &'static str {
        match self {
            Phase::Init => "init_by_lua*",
            Phase::InitWorker => "init_worker_by_lua*",
            Phase::ExitWorker => "exit_worker_by_lua*",
            Phase::Set => "set_by_lua*",
            Phase::ServerRewrite => "server_rewrite_by_lua*",
            Phase::Rewrite => "rewrite_by_lua*",
            Phase::Access => "access_by_lua*",
            Phase::Precontent => "precontent_by_lua*",
            Phase::Content => "content_by_lua*",
            Phase::Balancer => "balancer_by_lua*",
            Phase::HeaderFilter => "header_filter_by_lua*",
            Phase::BodyFilter => "body_filter_by_lua*",
            Phase::Log => "log_by_lua*",
            Phase::Timer => "ngx.timer",
            Phase::WorkerThread => "ngx.run_worker_thread",
            Phase::ClientHello => "ssl_client_hello_by_lua*",
            Phase::SessionFetch => "ssl_session_fetch_by_lua*",
            Phase::SessionStore => "ssl_session_store_by_lua*",
            Phase::Certificate => "ssl_certificate_by_lua*",
            Phase::ServerCertificate => "proxy_ssl_certificate_by_lua*",
            Phase::ServerVerify => "proxy_ssl_verify_by_lua*",
            Phase::Preread => "preread_by_lua*",
            Phase::Session => "content_by_lua*",
            Phase::SessionLog => "log_by_lua*",
        }
    }

    /// The text that names the phase in the script's log lines.
    pub fn in_log(self) -> &'static str {
        match self {
            Phase::Preread => " while prereading client data",
            Phase::InitWorker => ", context: init_worker_by_lua*",
            Phase::ExitWorker => ", context: exit_worker_by_lua*",
            Phase::Balancer => " while connecting to upstream",
            Phase::Log => " while logging request",
            Phase::Timer => ", context: ngx.timer",
            Phase::WorkerThread => ", context: ngx.run_worker_thread",
            Phase::ClientHello => ", context: ssl_client_hello_by_lua*",
            Phase::SessionFetch => ", context: ssl_session_fetch_by_lua*",
            Phase::SessionStore => ", context: ssl_session_store_by_lua*",
            Phase::Certificate => ", context: ssl_certificate_by_lua*",
            Phase::ServerCertificate => " while loading proxy ssl certificate by lua",
            Phase::ServerVerify => " while loading proxy ssl verify by lua",
            _ => "",
        }
    }

    /// Whether a script may yield here.
    pub fn may_wait(self) -> bool {
        let waits = self.is_handshake() && self != Phase::SessionStore || self.is_to_server();
        self.may_answer() || waits || self.is_session() || self == Phase::Timer
    }

    /// Whether it is a phase of a client's handshake, before a request.
    pub fn is_handshake(self) -> bool {
        use Phase::{Certificate, ClientHello, SessionFetch, SessionStore};
        matches!(self, ClientHello | SessionFetch | SessionStore | Certificate)
    }

    /// Whether it is a phase of a handshake with an upstream server.
    pub fn is_to_server(self) -> bool {
        matches!(self, Phase::ServerCertificate | Phase::ServerVerify)
    }

    /// Whether a session runs it, and its script may yield and write to the client.
    pub fn is_session(self) -> bool {
        matches!(self, Phase::Preread | Phase::Session)
    }

    /// Whether a script may call `ngx.exit` here.
    pub fn may_exit(self) -> bool {
        self.may_wait()
            || matches!(self, Phase::Balancer | Phase::HeaderFilter | Phase::SessionStore)
    }

    /// Whether a script may write to the client here.
    pub fn may_answer(self) -> bool {
        use Phase::{Access, Content, Precontent, Rewrite, ServerRewrite};
        matches!(self, ServerRewrite | Rewrite | Access | Precontent | Content)
    }
}

/// Runs `f` as a script of this phase and subject.
pub fn enter<T>(subject: Subject<'_>, side: Side, phase: Phase, f: impl FnOnce() -> T) -> T {
    let before = PHASE.replace(phase);
    let out = beside(side, || {
        operation(phase.directive(), || match subject {
            Subject::Request(request) => REQUEST.set(request, f),
            Subject::Session(session) => SESSION.set(session, f),
            Subject::Timer(timer) => {
                let before = TIMER.replace(Some(Rc::clone(timer)));
                let out = f();
                TIMER.set(before);
                out
            }
            Subject::Nothing => f(),
        })
    });
    PHASE.set(before);
    out
}

/// Runs `f` with the scripts of this side.
pub fn beside<T>(side: Side, f: impl FnOnce() -> T) -> T {
    let before = SIDE.replace(side);
    let out = f();
    SIDE.set(before);
    out
}

/// The side of the running script.
pub fn side() -> Side {
    SIDE.get()
}

/// The scripts of the running script's side.
pub fn scripts() -> Option<&'static Scripts> {
    site().map(|site| side().scripts(site))
}

/// The log's description of the running script's client, or of the one whose script set the running
/// timer.
pub fn origin() -> Rc<str> {
    let of_request = |r: &mut Request| {
        let listen = r.site.listens().get(r.conn.listen).map(|listen| &listen.address);
        let server = listen.unwrap_or_else(|| r.conn.local());
        format!(", client: {}, server: {server}", r.conn.peer.host()).into()
    };
    match with_session(|s| s.origin()) {
        Some(text) => text.into(),
        None => with_any(of_request).unwrap_or_else(|_| timer_origin()),
    }
}

/// The description of the client of the running timer; empty if there is none.
pub fn timer_origin() -> Rc<str> {
    TIMER.with_borrow(|timer| timer.as_ref().map(|timer| timer.origin.clone()).unwrap_or_default())
}

/// The settings of the request's location, the session's server, the place where the timer was
/// set, or the site.
pub fn settings() -> Option<&'static LocationConf> {
    let of_timer = || TIMER.with_borrow(|timer| timer.as_ref().map(|timer| timer.conf));
    let of_site = || site().map(|site| side().main(site));
    with_session(|s| session::context(s).conf)
        .or_else(|| with_any(|r| r.conf()).ok())
        .or_else(of_timer)
        .or_else(of_site)
}

/// Whether the running script runs for a session.
pub fn has_session() -> bool {
    SESSION.is_set()
}

/// The session of the running script, if it runs for one.
pub fn with_session<T>(f: impl FnOnce(&mut Scripted) -> T) -> Option<T> {
    has_session().then(|| SESSION.with(f))
}

/// The sockets of the running script's request, session or timer. `None` if it runs for none.
pub fn with_sockets<T>(f: impl FnOnce(&OwnSockets) -> T) -> Option<T> {
    if has_session() {
        return with_session(|s| f(&session::context(s).sockets));
    }
    if REQUEST.is_set() {
        return with_any(|r| f(&answer::context(r).sockets)).ok();
    }
    let timer = TIMER.with_borrow(Clone::clone);
    timer.map(|timer| f(&timer.sockets))
}

/// The site of the running script.
pub fn site() -> Option<&'static Site> {
    SITE.get().or_else(|| LoopState::current().map(|event_loop| event_loop.site))
}

/// Runs `f` with a site, on a thread that has no loop.
pub fn beside_loops<T>(site: &'static Site, f: impl FnOnce() -> T) -> T {
    let before = SITE.replace(Some(site));
    let out = f();
    SITE.set(before);
    out
}

/// Runs `f` without logging lines of its scripts.
pub fn mute<T>(f: impl FnOnce() -> T) -> T {
    IS_MUTE.set(true);
    let out = f();
    IS_MUTE.set(false);
    out
}

/// Whether lines of scripts are dropped.
pub fn is_mute() -> bool {
    IS_MUTE.get()
}

/// The time, also on a thread without a loop.
pub fn now() -> Instant {
    LoopState::current().map_or_else(Instant::now, |event_loop| event_loop.handle.now())
}

/// The phase of the running script.
pub fn phase() -> Phase {
    PHASE.get()
}

/// The request of the running script, if it runs for one.
pub fn with<T>(f: impl FnOnce(&mut Request) -> T) -> Result<T, NgxError> {
    if phase().is_handshake() {
        return Err(NgxError::NoRequest);
    }
    with_any(f)
}

/// The request, also in a handshake, where it stands for the connection.
pub fn with_any<T>(f: impl FnOnce(&mut Request) -> T) -> Result<T, NgxError> {
    if !REQUEST.is_set() {
        return Err(NgxError::NoRequest);
    }
    Ok(REQUEST.with(f))
}

/// The request, in phases that may write to the client.
pub fn with_answer<T>(f: impl FnOnce(&mut Request) -> T) -> Result<T, NgxError> {
    match phase() {
        phase if phase.may_answer() => with(f),
        phase => Err(NgxError::Disabled(phase)),
    }
}

/// The request, for functions whose error names the phase.
pub fn with_request<T>(f: impl FnOnce(&mut Request) -> T) -> Result<T, NgxError> {
    match phase() {
        phase if phase == Phase::Timer || phase.is_handshake() || phase.is_to_server() => {
            Err(NgxError::Disabled(phase))
        }
        _ => with(f),
    }
}

/// An error in phases that may not yield.
pub fn may_wait() -> Result<(), NgxError> {
    match phase() {
        phase if phase.may_wait() => Ok(()),
        Phase::Init => Err(NgxError::NoRequest),
        phase => Err(NgxError::Disabled(phase)),
    }
}

/// Sets the reason of the yield that follows.
pub fn request_yield(yielded: YieldRequest) -> Result<(), NgxError> {
    let phase = phase();
    let is_exit = matches!(yielded, YieldRequest::Exit(_));
    // The upstream server may have received part of the body.
    let is_late = phase.is_to_server() && yielded.is_of_body();
    if is_late || !(phase.may_wait() || is_exit && phase.may_exit()) {
        return Err(NgxError::Disabled(phase));
    }
    YIELD_REQUEST.set(Some(yielded));
    Ok(())
}

/// The reason of the yield that has just happened.
pub fn take_yield_request() -> Option<YieldRequest> {
    YIELD_REQUEST.take()
}

/// The message of a panic, as an error of the script.
pub fn fault(panic: &(dyn std::any::Any + Send)) -> mlua::Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    mlua::Error::runtime(text.unwrap_or("a function of ngx failed"))
}

/// Why a function of `ngx` failed. The prelude raises it in the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NgxError {
    /// There is no request: in a timer, or at the start.
    NoRequest,
    /// The function is disabled in this phase.
    Disabled(Phase),
    /// Something else.
    Other(String),
}

impl NgxError {
    /// The error of functions that yield. In a handshake it names the phase.
    pub fn in_phase(self) -> NgxError {
        match self {
            NgxError::NoRequest if phase().is_handshake() => NgxError::Disabled(phase()),
            other => other,
        }
    }
}

impl std::fmt::Display for NgxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NgxError::NoRequest if phase() == Phase::Init => f.write_str("no request found"),
            NgxError::NoRequest if phase() == Phase::WorkerThread => {
                NgxError::Disabled(Phase::WorkerThread).fmt(f)
            }
            NgxError::NoRequest => f.write_str("API disabled in the current context"),
            NgxError::Disabled(phase) => {
                write!(f, "API disabled in the context of {}", phase.directive())
            }
            NgxError::Other(text) => f.write_str(text),
        }
    }
}

impl From<String> for NgxError {
    fn from(text: String) -> NgxError {
        NgxError::Other(text)
    }
}

impl From<&str> for NgxError {
    fn from(text: &str) -> NgxError {
        NgxError::Other(text.to_owned())
    }
}
