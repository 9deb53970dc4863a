//! Shows counters of connections and requests, for nginx's format and for monitoring.
//! nginx: ngx_http_stub_status_module.

use bytes::Bytes;
use weir_conf::Error;
use weir_engine::{Boxed, Chain};
use weir_log::Sink;
use weir_metrics::{Counting, IdleRows, LoopDetail, Metric, MetricsPage, PageForm};
use weir_proto::http1::Method;
use weir_proto::uri;
use weir_values::status;

use crate::answer::output::write_number;
use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::counts;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::upstream::figures;

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "stub_status",
        help: "Answers with nginx's counters as text.",
        set: Set::Simple(|s, _| {
            s.answer_with(STUB_STATUS.with(()));
            Ok(())
        }),
    },
    Directive {
        name: "weir_status",
        help: "Answers with all counters, as `prometheus` (the default) or `json`, or with the newest lines of \
               `error_log memory:` (`log`). `?loops=1` adds the counters of each loop. Of more than 1,000 upstream servers it \
               shows their groups, with `?servers=1` each server. Of more than 1,000 groups or zones `prometheus` shows those \
               that have counted anything, with `?idle=1` all.",
        set: Set::Simple(set_status),
    },
    Directive {
        name: "status_zone",
        help: "The name under which `weir_status` counts requests of a server or location. With `if=`, it counts those for which the value is neither empty nor `0`.",
        set: Set::Simple(set_zone),
    },
];

const VARIABLES: &[(&str, Metric)] = &[
    ("connections_active", Metric::Active),
    ("connections_reading", Metric::Reading),
    ("connections_writing", Metric::Writing),
    ("connections_waiting", Metric::Waiting),
];

/// The content handler.
static WEIR_STATUS: ContentHandler<Form> = ContentHandler {
    module: "stub_status",
    in_limit_except: true,
    optional: false,
    run: |r, settings| Answer::Later(Boxed::new(move || settings.answer(r))),
};

/// The module.
pub const MODULE: Module =
    Module { name: "http_stub_status", directives: DIRECTIVES, init, ..Module::NEW };

fn init(setup: &mut Setup<'_>) {
    for (name, metric) in VARIABLES {
        setup.variables.define(name, |r, out| {
            write_number(r.event_loop.registry.sum(*metric), out);
            true
        });
    }
}

/// The content handler.
static STUB_STATUS: ContentHandler<()> = ContentHandler {
    module: "stub_status",
    in_limit_except: false,
    optional: false,
    run: |r, ()| Answer::Now(handler(r)),
};

/// Handles a request in a location with `stub_status`.
fn handler(r: &mut Request) -> Step {
    let sum = |metric| r.event_loop.registry.sum(metric);
    let text = format!(
        "Active connections: {} \nserver accepts handled requests\n {} {} {} \n\
         Reading: {} Writing: {} Waiting: {} \n",
        sum(Metric::Active),
        sum(Metric::Accepted),
        sum(Metric::Handled),
        sum(Metric::Requests),
        sum(Metric::Reading),
        sum(Metric::Writing),
        sum(Metric::Waiting)
    );
    answer(r, b"text/plain", text)
}

/// The output of `weir_status`.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// All counters, for Prometheus. `?loops=1` adds those of each loop, `?servers=1` those of each
    /// server of large groups, and `?idle=1` zero rows of long tables.
    Prometheus,
    /// All counters.
    Json,
    /// The newest lines of `error_log memory:`.
    Log,
}

impl Form {
    /// Handles a request in a location with `weir_status`.
    async fn answer(self, r: &mut Request) -> Step {
        let asks = |name: &[u8]| uri::arg(&r.args, name).is_some_and(|value| value == b"1");
        let each = asks(b"servers");
        match self {
            Form::Prometheus => {
                let detail = if asks(b"loops") { LoopDetail::Each } else { LoopDetail::Sums };
                let idle = match each || asks(b"idle") {
                    true => IdleRows::Shown,
                    false => IdleRows::LeftOut,
                };
                let form = PageForm::Prometheus(detail, idle);
                answer_page(r, b"text/plain; version=0.0.4", each, form).await
            }
            Form::Json => answer_page(r, b"application/json", each, PageForm::Json).await,
            Form::Log => {
                let text = log(r);
                answer(r, b"text/plain", text)
            }
        }
    }
}

/// A page up to this length is sent as a whole. For a longer one, the loop has one piece in memory
/// at a time.
const WHOLE: usize = 1 << 20;

/// Answers with all counters.
pub(super) async fn answer_page(r: &mut Request, kind: &[u8], each: bool, form: PageForm) -> Step {
    let page = gather(r, each).await;
    let handle = r.event_loop.handle.clone();
    let (mut whole, mut pieces) = (String::new(), page.pieces(form));
    for piece in pieces.by_ref() {
        whole += &piece;
        if whole.len() > WHOLE && r.method == Method::Get {
            return stream(r, kind, whole, pieces).await;
        }
        handle.heavy().await;
    }
    drop(pieces);
    answer(r, kind, whole)
}

/// Sends `begin`, and then the rest as it is made.
async fn stream(
    r: &mut Request,
    kind: &[u8],
    begin: String,
    rest: impl Iterator<Item = String>,
) -> Step {
    let handle = r.event_loop.handle.clone();
    r.response.status = 200;
    r.response.set_type(kind);
    if let Err(end) = r.send_head() {
        return end;
    }
    for piece in std::iter::once(begin).chain(rest).filter(|piece| !piece.is_empty()) {
        let mut chain = Chain::new();
        chain.push(Bytes::from(piece));
        if r.send_body(chain, false).await.is_err() {
            return Step::Abort;
        }
        handle.heavy().await;
    }
    match r.send_body(Chain::new(), true).await {
        Ok(()) => Step::Sent,
        Err(_) => Step::Abort,
    }
}

/// All counters as one text.
pub(super) async fn text(r: &Request, form: PageForm) -> String {
    let page = gather(r, false).await;
    let mut text = String::new();
    for piece in page.pieces(form) {
        text += &piece;
        r.event_loop.handle.heavy().await;
    }
    text
}

/// Collects all counters. With many loops and servers this takes long, so other tasks run in
/// between.
async fn gather(r: &Request, each: bool) -> MetricsPage {
    let mut page = MetricsPage::new();
    let mut counting = Counting::new(r.event_loop.registry);
    while counting.more(CELLS_AT_A_TIME) {
        r.event_loop.handle.heavy().await;
    }
    let all = counting.end();
    if let Some(shown) = r.event_loop.shown.get() {
        shown(&all, each, &mut page);
    }
    r.event_loop.registry.show(&mut page);
    counts::show(r, &all, &mut page).await;
    figures::show(r, &all, each, &mut page).await;
    let sessions = r.event_loop.status_zones.get().copied().unwrap_or_default();
    status::show(sessions, &r.site.status_zones, &mut page);
    page
}

/// The counters of a loop take a kilobyte.
const CELLS_AT_A_TIME: usize = 500;

/// The newest lines of the location's logs in memory.
fn log(r: &Request) -> Bytes {
    let memories =
        r.conf().core.error_log.sinks().iter().filter_map(|(_, sink)| match sink.place() {
            Sink::Memory(memory) => Some(memory.newest(LOG_SHOWN)),
            _ => None,
        });
    memories.collect::<Vec<_>>().concat().into()
}

fn answer(r: &mut Request, kind: &[u8], text: impl Into<Bytes>) -> Step {
    if !matches!(r.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    r.response.status = 200;
    r.response.set_type(kind);
    Step::Respond(text.into())
}

/// `status_zone NAME`, and in locations `status_zone off` and `status_zone NAME if=CONDITION`
fn set_zone(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let Some(word) = d.arg(0) else { return Ok(()) };
    let name = word.lossy().into_owned();
    if name.is_empty() {
        return Err(d.error_at(word, "invalid zone name \"\""));
    }
    let is_server = s.place.kind.is_server();
    if !is_server && s.first_of("status_zone of a location") {
        Scope::change(&mut s.location.core).status_zones.instead.clear();
    }
    if let Some(word) = d.arg(1) {
        let condition = word.bytes.strip_prefix(b"if=");
        let Some(condition) = condition.filter(|_| !is_server && name != "off") else {
            let text = format!("invalid parameter \"{}\"", word.lossy());
            return Err(d.error_at(word, text));
        };
        let condition = s.setup.template_of(d, word, condition)?;
        let number = s.setup.status_zones.of(&name);
        Scope::change(&mut s.location.core).status_zones.instead.push((condition, number));
        return Ok(());
    }
    s.once(d)?;
    if !is_server && name == "off" {
        Scope::change(&mut s.location.core).status_zones.location = None;
        return Ok(());
    }
    let number = s.setup.status_zones.of(&name);
    let conf = &mut Scope::change(&mut s.location.core).status_zones;
    *(if is_server { &mut conf.server } else { &mut conf.location }) = Some(number);
    Ok(())
}

/// `weir_status [prometheus|json|log]`
fn set_status(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    s.once(d)?;
    let form = match d.arg(0).map(|word| word.bytes.as_slice()) {
        None | Some(b"prometheus") => Form::Prometheus,
        Some(b"json") => Form::Json,
        Some(b"log") => Form::Log,
        Some(_) => return Err(d.problem("invalid value").hint("it may be: prometheus, json, log")),
    };
    s.answer_with(WEIR_STATUS.with(form));
    Ok(())
}

/// The most bytes of a log in memory that a response has. More would block the loop for
/// milliseconds.
const LOG_SHOWN: usize = 1 << 20;
