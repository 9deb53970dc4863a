//! `weir_dashboard` shows a live page about loops, latency and servers. nginx has no such module.
//!
//! The page requests its own URL for server-sent events. An event is the answer of `weir_status
//! json` without the parts that the page does not show. The page computes all that it shows from
//! events, so nothing is counted, kept or sent without a viewer.

mod event;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use bytes::Bytes;
use weir_conf::Error;
use weir_engine::{Boxed, Chain};
use weir_log::Level;
use weir_metrics::PageForm;
use weir_proto::base64::{self, Alphabet};
use weir_proto::http1::{HeaderId, Method};

use self::event::{Event, Gzip};
use super::encoding::accepts;
use super::stub_status;
use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::event_loop::{LoopKey, LoopPart};
use crate::phases::{Answer, Later, Step};
use crate::request::{Request, origin};
use crate::site::content::ContentHandler;

/// The page and its `Content-Security-Policy`.
#[derive(Debug, Clone)]
pub struct DashboardPage {
    text: Bytes,
    policy: String,
}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "weir_dashboard",
    help: "A live page about loops, latency and servers; the text is its title.",
    set: Set::Simple(set_dashboard),
}];

/// The module.
pub const MODULE: Module =
    Module { name: "http_dashboard", directives: DIRECTIVES, init, ..Module::NEW };

fn init(_: &mut Setup<'_>) {}

/// `weir_dashboard [TEXT]`
fn set_dashboard(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    s.once(d)?;
    let note = d.arg(0).map(|word| word.lossy()).unwrap_or_default();
    s.answer_with(CONTENT.with(DashboardPage::new(&note)));
    Ok(())
}

/// The content handler.
static CONTENT: ContentHandler<DashboardPage> = ContentHandler {
    module: "dashboard",
    in_limit_except: true,
    optional: false,
    run: |r, settings| Answer::Later(handler(r, settings)),
};

/// Sends events or JSON to a client that accepts these types, and the page to others.
fn handler<'a>(r: &'a mut Request, page: &'static DashboardPage) -> Later<'a> {
    Boxed::new(move || async move {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Step::Status(405);
        }
        if let Some(why) = origin::refuse(r) {
            r.log(Level::Error, format_args!("weir_dashboard refused a request: {why}"));
            return Step::Status(403);
        }
        r.response.headers.add(b"Cache-Control", b"no-store");
        r.response.headers.add(b"Vary", b"Accept, Accept-Encoding");
        let accepted = r.header(HeaderId::Accept).unwrap_or_default();
        let wants = |kind: &[u8]| memchr::memmem::find(accepted, kind).is_some();
        if wants(EVENTS) && r.method == Method::Get {
            return stream(r).await;
        }
        if wants(JSON) {
            return stub_status::answer_page(r, JSON, false, PageForm::JsonWithSteps).await;
        }
        r.response.headers.add(b"Content-Security-Policy", page.policy.as_bytes());
        r.response.headers.add(b"X-Content-Type-Options", b"nosniff");
        answer(r, b"text/html; charset=utf-8", page.text.clone())
    })
}

fn answer(r: &mut Request, kind: &[u8], text: Bytes) -> Step {
    r.response.status = 200;
    r.response.say_type(kind);
    Step::Respond(text)
}

/// Sends events until the client disconnects or the worker retires. The browser then connects again
/// by itself.
async fn stream(r: &mut Request) -> Step {
    let Some(_permit) = ViewerPermit::take() else {
        r.response.headers.add(b"Retry-After", b"10");
        return Step::Status(503);
    };
    r.response.status = 200;
    r.response.is_endless = true;
    r.response.say_type(EVENTS);
    let mut gzip = accepts(r, "gzip").then(Gzip::default);
    if gzip.is_some() {
        r.response.content_encoding = Some(b"gzip".to_vec());
    }
    // Tells an nginx in front not to buffer the answer.
    r.response.headers.add(b"X-Accel-Buffering", b"no");
    // A retiring worker must not wait for another request on this connection.
    r.keepalive = false;
    if let Err(end) = r.send_head() {
        return end;
    }
    let (handle, newest) = (r.event_loop.handle.clone(), PANEL.of(&r.event_loop).join());
    loop {
        let last = r.event_loop.retiring();
        let (event, due) = match newest.at(handle.now()) {
            Some(known) => known,
            None => newest.set(handle.now(), &stub_status::text(r, PageForm::Panel).await),
        };
        let mut chain = Chain::new();
        match &mut gzip {
            None => chain.push(event.text()),
            Some(gzip) => {
                let Ok(piece) = gzip.next(&event) else { return Step::Abort };
                chain.push(piece);
                if last {
                    chain.push(gzip.end());
                }
            }
        }
        let sent = match r.send_body(chain, last).await {
            Ok(()) if !last => r.flush_body().await,
            sent => sent,
        };
        if sent.is_err() {
            return Step::Abort;
        }
        if last {
            return Step::Sent;
        }
        handle.sleep_until(due).await;
    }
}

impl DashboardPage {
    fn new(note: &str) -> DashboardPage {
        let (style, script) = (include_str!("page.css"), include_str!("page.js"));
        let text = include_str!("page.html");
        let text = text.replace("{{css}}", style).replace("{{js}}", script);
        let shown = match note {
            "" => String::new(),
            note => format!("<p class=\"note\">{}</p>", escape(note)),
        };
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
            hash(script),
            hash(style)
        );
        DashboardPage { text: text.replace("{{note}}", &shown).into(), policy }
    }
}

/// The hash of an inline script or style, as `Content-Security-Policy` writes it.
fn hash(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    let mut name = b"sha256-".to_vec();
    base64::encode(Alphabet::Plain, digest.as_ref(), &mut name);
    String::from_utf8_lossy(&name).into_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The newest event of a loop. It exists as long as the loop has viewers. An event is made once for
/// all viewers, since that takes milliseconds with many zones.
#[derive(Default)]
pub struct Newest(RefCell<Option<(Instant, Rc<Event>)>>);

impl Newest {
    /// The current event, and when the next one is due. `None` if one is due now.
    fn at(&self, now: Instant) -> Option<(Rc<Event>, Instant)> {
        let newest = self.0.borrow();
        let (due, event) = newest.as_ref().filter(|(due, _)| *due > now)?;
        Some((Rc::clone(event), *due))
    }

    /// Sets a new event unless a current one exists. Returns the current event and when the next
    /// one is due. Two viewers may make an event at the same time: the second one then gets the
    /// first one's.
    fn set(&self, now: Instant, json: &str) -> (Rc<Event>, Instant) {
        self.at(now).unwrap_or_else(|| {
            let before = self.0.take().map(|(_, event)| event);
            let (event, due) = (Rc::new(Event::after(before.as_deref(), json)), now + PAUSE);
            self.0.replace(Some((due, Rc::clone(&event))));
            (event, due)
        })
    }
}

/// Refers to the loop's newest event for new viewers.
#[derive(Default)]
pub struct Viewers(RefCell<Weak<Newest>>);

/// The loop's viewers.
pub static PANEL: LoopKey<Viewers> = LoopKey::new(|_| Viewers::default());

impl LoopPart for Viewers {}

impl Viewers {
    fn join(&self) -> Rc<Newest> {
        let known = self.0.borrow().upgrade();
        known.unwrap_or_else(|| {
            let newest = Rc::default();
            self.0.replace(Rc::downgrade(&newest));
            newest
        })
    }
}

/// A permit to send events to one viewer of this process.
struct ViewerPermit;

impl ViewerPermit {
    fn take() -> Option<ViewerPermit> {
        let more = |n| (n < VIEWERS).then_some(n + 1);
        LOOKING.fetch_update(Relaxed, Relaxed, more).ok().map(|_| ViewerPermit)
    }
}

impl Drop for ViewerPermit {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Relaxed);
    }
}

static LOOKING: AtomicUsize = AtomicUsize::new(0);
/// The most viewers of a worker process, since every event is sent to each of them.
const VIEWERS: usize = 32;
/// The interval between two events.
const PAUSE: Duration = Duration::from_secs(1);

const EVENTS: &[u8] = b"text/event-stream";
const JSON: &[u8] = b"application/json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_has_the_hashes_of_the_page() {
        let page = DashboardPage::new("<b> & \"more\"");
        let text = std::str::from_utf8(&page.text).unwrap();
        assert!(!text.contains("{{"), "a place was left open");
        assert!(text.contains("&lt;b&gt; &amp; \"more\""), "{}", &text[..2000]);
        for (tag, source) in [("style", "style-src"), ("script", "script-src")] {
            let inside = text.split_once(&format!("<{tag}>")).unwrap().1;
            let inside = inside.split_once(&format!("</{tag}>")).unwrap().0;
            assert!(page.policy.contains(&format!("{source} '{}'", hash(inside))), "{tag}");
        }
        // A policy without 'unsafe-inline' would block any of these.
        assert!(!text.contains(" style=") && !text.contains(" onclick="));
        assert!(!text.contains("innerHTML") && !text.contains("http://127"));
    }

    #[test]
    fn an_event_is_made_once_for_all_viewers() {
        let (viewers, made, began) = (Viewers::default(), std::cell::Cell::new(0), Instant::now());
        let at = |newest: Rc<Newest>, now: Instant| {
            let (event, due) = newest.at(now).unwrap_or_else(|| {
                made.set(made.get() + 1);
                newest.set(now, &made.get().to_string())
            });
            (event.text(), due)
        };
        let text = |n: i32| Bytes::from(format!("data: {n}\n\n"));
        let all = [(); 3].map(|()| viewers.join());
        for turn in 0..4 {
            let now = began + PAUSE * turn;
            let each = all.each_ref().map(|newest| at(Rc::clone(newest), now));
            let expected = (text(turn as i32 + 1), now + PAUSE);
            assert_eq!(each, [(); 3].map(|()| expected.clone()));
            // A viewer that joins between two events waits for the same next event as the others.
            assert_eq!(at(viewers.join(), now + PAUSE / 2), expected);
            // Two viewers have begun to make the same event.
            let (event, due) = all[0].set(now, "another");
            assert_eq!((event.text(), due), expected);
        }
        // Without viewers no event is kept.
        drop(all);
        assert_eq!(at(viewers.join(), began + PAUSE * 3).0, text(5));
    }

    #[test]
    fn the_number_of_viewers_is_limited() {
        let places: Vec<ViewerPermit> =
            std::iter::from_fn(ViewerPermit::take).take(VIEWERS + 1).collect();
        assert_eq!(places.len(), VIEWERS);
        drop(places);
        assert!(ViewerPermit::take().is_some());
    }
}
