//! Answers with texts from the configuration, for tests and experiments. nginx: the echo module.

use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_conf::{Directive as Line, Error};
use weir_engine::{Boxed, Chain};
use weir_proto::http1::Method;
use weir_values::{Subject, Template};

use crate::answer::filters::{BodyFilter, Filtered};
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::content::ContentHandler;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `echo_status`
    status: Option<u16>,
    /// `echo_before_body`
    before: Vec<EchoText>,
    /// `echo_after_body`
    after: Vec<EchoText>,
}

impl Settings for Conf {}

/// Words that are joined with spaces.
#[derive(Debug, Clone)]
struct EchoText {
    words: Vec<Template>,
    newline: bool,
}

/// The actions that make up the answer, in order.
#[derive(Debug, Clone)]
pub struct Actions(Vec<Action>);

#[derive(Debug, Clone)]
enum Action {
    Echo(EchoText),
    /// `echo_duplicate`: the count and the text.
    Repeat(Template, Template),
    /// `echo_flush`
    Flush,
    /// `echo_sleep`: seconds.
    Sleep(Template),
    /// `echo_reset_timer`
    ResetTimer,
    /// `echo_read_request_body`
    ReadBody,
    /// `echo_request_body`
    Body,
    /// `echo_location`, `echo_subrequest`
    Include {
        method: Method,
        path: Template,
        args: Option<Template>,
        body: Option<Template>,
    },
    /// `echo_foreach_split`: the separator and the text to split.
    Each(Template, Template),
    /// `echo_end`
    End,
    /// `echo_exec`
    Exec(Template, Option<Template>),
}

/// The state of a request.
#[derive(Debug, Default)]
pub struct Context {
    /// `$echo_it`
    it: Option<Vec<u8>>,
    /// The time of the last `echo_reset_timer`.
    timer: Option<Instant>,
}

/// A row of the table of directives.
macro_rules! act {
    ($name:literal, $read:expr, $help:literal) => {
        Directive {
            name: $name,
            help: $help,
            set: Set::Simple(|s, d| {
                let read: fn(&mut Scope<'_, '_>, &Line) -> Result<Action, Error> = $read;
                let act = read(s, d)?;
                add(s, act);
                Ok(())
            }),
        }
    };
}

const DIRECTIVES: &[Directive] = &[
    act!(
        "echo",
        |s, d| Ok(Action::Echo(text(s, d)?)),
        "Outputs its arguments and a line end; `-n`: without a line end."
    ),
    act!(
        "echo_duplicate",
        |s, d| Ok(Action::Repeat(word(s, d, 0)?, word(s, d, 1)?)),
        "Outputs a text several times."
    ),
    act!("echo_flush", |_, _| Ok(Action::Flush), "Sends the output so far."),
    act!("echo_sleep", |s, d| Ok(Action::Sleep(word(s, d, 0)?)), "Waits, in seconds."),
    act!(
        "echo_blocking_sleep",
        |s, d| Ok(Action::Sleep(word(s, d, 0)?)),
        "As `echo_sleep`: weir's loops do not wait. See `work` for one that does."
    ),
    act!("echo_reset_timer", |_, _| Ok(Action::ResetTimer), "Resets `$echo_timer_elapsed`."),
    act!("echo_read_request_body", |_, _| Ok(Action::ReadBody), "Reads the request's body."),
    act!(
        "echo_request_body",
        |_, _| Ok(Action::Body),
        "Outputs the request's body, if it was read."
    ),
    act!("echo_location", location, "Outputs the response of a subrequest to this URI."),
    act!("echo_location_async", location, "As `echo_location`."),
    act!("echo_subrequest", subrequest, "As `echo_location`, with another method and body."),
    act!("echo_subrequest_async", subrequest, "As `echo_subrequest`."),
    act!(
        "echo_foreach_split",
        |s, d| Ok(Action::Each(word(s, d, 0)?, word(s, d, 1)?)),
        "Repeats the following directives for each part of a text, `$echo_it`."
    ),
    act!("echo_end", |_, _| Ok(Action::End), "Ends `echo_foreach_split`."),
    act!(
        "echo_exec",
        |s, d| Ok(Action::Exec(word(s, d, 0)?, optional(s, d, 1)?)),
        "Redirects internally to another URI."
    ),
    Directive {
        name: "echo_status",
        help: "The status of the output.",
        set: Set::Simple(|s, d| {
            let Some(word) = d.arg(0) else { return Ok(()) };
            let status = weir_conf::values::number(&word.bytes);
            let status = status.and_then(|n| u16::try_from(n).ok()).filter(|n| *n >= 200);
            let status = status.ok_or_else(|| d.invalid("status", word))?;
            CONF.change(&mut s.location).status = Some(status);
            Ok(())
        }),
    },
    Directive {
        name: "echo_before_body",
        help: "Outputs a text before the location's responses.",
        set: Set::Simple(|s, d| around(s, d, |conf| &mut conf.before)),
    },
    Directive {
        name: "echo_after_body",
        help: "Outputs a text after the location's responses.",
        set: Set::Simple(|s, d| around(s, d, |conf| &mut conf.after)),
    },
];

/// The state of a request.
static CONTEXT: ContextKey<Context> = ContextKey::passing();

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_echo", directives: DIRECTIVES, init, ..Module::NEW };

/// Adds an action. The first one of a block replaces the inherited actions.
fn add(s: &mut Scope<'_, '_>, act: Action) {
    let first = s.first_of("acts of echo");
    match CONTENT.change(&mut Scope::change(&mut s.location.core).content) {
        Some(Actions(actions)) if !first => actions.push(act),
        _ => s.answer_with(CONTENT.with(Actions(vec![act]))),
    }
}

/// Adds a text to a list. The first one of a block replaces the inherited texts.
fn around(
    s: &mut Scope<'_, '_>,
    d: &Line,
    list: fn(&mut Conf) -> &mut Vec<EchoText>,
) -> Result<(), Error> {
    let text = text(s, d)?;
    let first = s.first(d);
    let texts = list(CONF.change(&mut s.location));
    if first {
        texts.clear();
    }
    texts.push(text);
    Ok(())
}

fn init(setup: &mut crate::config::Setup<'_>) {
    let variables = &mut setup.variables;
    variables.define("echo_it", |r, out| {
        let it = CONTEXT.of(&r.contexts).and_then(|context| context.it.as_deref());
        out.extend_from_slice(it.unwrap_or_default());
        it.is_some()
    });
    variables.define("echo_timer_elapsed", |r, out| {
        let begun = CONTEXT.of(&r.contexts).and_then(|context| context.timer);
        let elapsed =
            r.event_loop.handle.now().saturating_duration_since(begun.unwrap_or(r.started));
        let millis = elapsed.as_millis();
        out.extend_from_slice(format!("{}.{:03}", millis / 1000, millis % 1000).as_bytes());
        true
    });
    let body = variables.refer(b"request_body");
    variables.define("echo_request_body", move |r, out| r.variable(body, out));
    // In a subrequest, this is the subrequest's method. $request_method is that of the main
    // request.
    variables.define("echo_request_method", |r, out| {
        out.extend_from_slice(r.method_name());
        true
    });
    variables.define("echo_client_request_method", |r, out| {
        let line = r.head().line.of(&r.buf);
        out.extend(line.iter().take_while(|b| **b != b' '));
        true
    });
    variables.define("echo_request_uri", |r, out| {
        out.extend_from_slice(&r.path);
        if !r.args.is_empty() {
            out.push(b'?');
            out.extend_from_slice(&r.args);
        }
        true
    });
    variables.define("echo_client_request_headers", |r, out| {
        out.extend_from_slice(r.head().line.of(&r.buf));
        out.extend_from_slice(b"\r\n");
        for (name, value) in r.headers() {
            out.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        out.extend_from_slice(b"\r\n");
        true
    });
}

/// `[-n] [--] word...`
fn text(s: &mut Scope<'_, '_>, d: &Line) -> Result<EchoText, Error> {
    let (mut words, mut newline) = (d.args.as_slice(), true);
    while let [first, rest @ ..] = words {
        match first.bytes.as_slice() {
            b"-n" => newline = false,
            b"--" => {
                words = rest;
                break;
            }
            _ => break,
        }
        words = rest;
    }
    let words: Result<_, Error> = words.iter().map(|word| s.setup.template(d, word)).collect();
    Ok(EchoText { words: words?, newline })
}

fn word(s: &mut Scope<'_, '_>, d: &Line, n: usize) -> Result<Template, Error> {
    optional(s, d, n).map(Option::unwrap_or_default)
}

fn optional(s: &mut Scope<'_, '_>, d: &Line, n: usize) -> Result<Option<Template>, Error> {
    d.arg(n).map(|word| s.setup.template(d, word)).transpose()
}

fn location(s: &mut Scope<'_, '_>, d: &Line) -> Result<Action, Error> {
    let (path, args) = (word(s, d, 0)?, optional(s, d, 1)?);
    Ok(Action::Include { method: Method::Get, path, args, body: None })
}

/// `METHOD path [-q args] [-b body]`
fn subrequest(s: &mut Scope<'_, '_>, d: &Line) -> Result<Action, Error> {
    let method = d.arg(0).map_or(Method::Get, |word| Method::from_name(&word.bytes));
    if let (Method::Other, Some(word)) = (method, d.arg(0)) {
        return Err(d.invalid("method", word));
    }
    let path = word(s, d, 1)?;
    let (mut args, mut body) = (None, None);
    for (option, n) in d.args.iter().skip(2).step_by(2).zip((3..).step_by(2)) {
        if d.arg(n).is_none() {
            return Err(d.error_at(option, format!("{} takes an argument", option.lossy())));
        }
        match option.bytes.as_slice() {
            b"-q" => args = optional(s, d, n)?,
            b"-b" => body = optional(s, d, n)?,
            _ => return Err(d.invalid("option", option)),
        }
    }
    Ok(Action::Include { method, path, args, body })
}

impl EchoText {
    fn write(&self, r: &mut Request, out: &mut Vec<u8>) {
        for (i, word) in self.words.iter().enumerate() {
            if i > 0 {
                out.push(b' ');
            }
            word.eval_into(r, out);
        }
        if self.newline {
            out.push(b'\n');
        }
    }
}

/// The content handler.
static CONTENT: ContentHandler<Actions> = ContentHandler {
    module: "echo",
    in_limit_except: false,
    optional: true,
    run: |r, settings| Answer::Later(handler(r, settings)),
};

/// The content handler of a location with actions.
fn handler<'a>(r: &'a mut Request, Actions(actions): &'static Actions) -> Later<'a> {
    Boxed::new(move || async move {
        let mut output = Output { pending: Vec::new() };
        let end = match perform(r, actions, &mut output).await {
            Ok(()) => output.send(r, true).await,
            Err(end) => Err(end),
        };
        end.err().unwrap_or(Step::Sent)
    })
}

/// The text that was not sent yet.
struct Output {
    pending: Vec<u8>,
}

/// The length at which pending text is sent at once.
const ROOM: usize = 16 * 1024;

/// The most bytes that one `echo_duplicate` makes.
const REPEATED: usize = 16 << 20;

impl Output {
    async fn send(&mut self, r: &mut Request, last: bool) -> Result<(), Step> {
        if !r.response.sent {
            if !r.body.is_whole() {
                r.discard_received()?;
            }
            r.response.status = CONF.of(r.conf()).status.unwrap_or(200);
            r.set_content_type();
            r.send_head()?;
        }
        let mut chain = Chain::new();
        if !self.pending.is_empty() {
            chain.push(Bytes::from(std::mem::take(&mut self.pending)));
        }
        if !last && chain.is_empty() {
            return Ok(());
        }
        r.send_body(chain, last).await.map_err(|_| Step::Abort)
    }
}

/// Runs the actions in order. The error ends the request.
async fn perform(
    r: &mut Request,
    actions: &'static [Action],
    output: &mut Output,
) -> Result<(), Step> {
    let mut rest = actions;
    while let [act, after @ ..] = rest {
        rest = after;
        match act {
            Action::Echo(text) => text.write(r, &mut output.pending),
            Action::Repeat(times, text) => repeat(r, times, text, output),
            Action::Flush => {
                output.send(r, false).await?;
                r.flush_body().await.map_err(|_| Step::Abort)?;
            }
            Action::Sleep(seconds) => {
                output.send(r, false).await?;
                let seconds = number(r, seconds);
                let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                r.event_loop.handle.sleep(time).await;
            }
            Action::ResetTimer => {
                let now = r.event_loop.handle.now();
                context(r).timer = Some(now);
            }
            Action::ReadBody => r.read_body().await?,
            Action::Body => {
                output.send(r, false).await?;
                let mut chain = Chain::new();
                r.body.append_to(&mut chain);
                r.send_body(chain, false).await.map_err(|_| Step::Abort)?;
            }
            Action::Include { method, path, args, body } => {
                output.send(r, false).await?;
                let (path, args) = (value(r, path), args.as_ref().map(|args| value(r, args)));
                let body = body.as_ref().map(|body| value(r, body));
                let sub = r.include_by(*method, &path, &args.unwrap_or_default(), body);
                r.send_subrequest(sub.ok_or(Step::Status(500))?);
                r.send_queued().await.map_err(|_| Step::Abort)?;
            }
            Action::Each(separator, whole) => {
                let end = after.iter().position(|act| matches!(act, Action::End));
                let (each, behind) = after.split_at(end.unwrap_or(after.len()));
                rest = behind;
                let (separator, whole) = (value(r, separator), value(r, whole));
                for part in parts(&whole, &separator) {
                    context(r).it = Some(part.to_vec());
                    Box::pin(perform(r, each, output)).await?;
                }
                context(r).it = None;
            }
            Action::End => {}
            Action::Exec(path, args) => {
                let (path, args) = (value(r, path), args.as_ref().map(|args| value(r, args)));
                return Err(match path.strip_prefix(b"@") {
                    Some(_) => r.redirect_to_named(&path),
                    None => r.redirect_to_parts(&path, args.unwrap_or_default()),
                });
            }
        }
        if output.pending.len() >= ROOM {
            output.send(r, false).await?;
        }
    }
    Ok(())
}

fn context(r: &mut Request) -> &mut Context {
    CONTEXT.or_insert_with(&mut r.contexts, Context::default)
}

fn value(r: &mut Request, template: &Template) -> Vec<u8> {
    template.eval(r).into_owned()
}

fn number(r: &mut Request, template: &Template) -> f64 {
    let text = value(r, template);
    std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
}

fn repeat(r: &mut Request, times: &Template, text: &Template, output: &mut Output) {
    let (times, text) = (number(r, times), value(r, text));
    let most = REPEATED / text.len().max(1);
    // A negative number or no number counts as zero.
    let times = (times as usize).min(most);
    output.pending.reserve(times * text.len());
    (0..times).for_each(|_| output.pending.extend_from_slice(&text));
}

/// The parts of a text that are not empty.
fn parts<'a>(whole: &'a [u8], separator: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut start = 0;
    if !separator.is_empty() {
        for at in memchr::memmem::find_iter(whole, separator) {
            parts.push(&whole[start..at]);
            start = at + separator.len();
        }
    }
    parts.push(whole.get(start..).unwrap_or_default());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Whether the location adds text to its answers.
pub fn wanted(conf: &LocationConf) -> bool {
    !(CONF.of(conf).before.is_empty() && CONF.of(conf).after.is_empty())
}

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    if r.is_main() && (200..300).contains(&r.response.status) {
        r.response.expect_changes();
        r.response.weaken_etag();
        r.add_body_filter(Box::new(Around { conf: CONF.of(r.conf()), begun: false }));
    }
    Ok(())
}

struct Around {
    conf: &'static Conf,
    begun: bool,
}

impl BodyFilter for Around {
    fn module(&self) -> &'static str {
        "echo"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, mut input: Chain, last: bool) -> Filtered<'a> {
        let output = |r: &mut Request, texts: &[EchoText]| {
            let mut out = Vec::new();
            texts.iter().for_each(|text| text.write(r, &mut out));
            Bytes::from(out)
        };
        let mut all = Chain::new();
        if !std::mem::replace(&mut self.begun, true) && !self.conf.before.is_empty() {
            all.push(output(r, &self.conf.before));
        }
        all.append(&mut input);
        if last && !self.conf.after.is_empty() {
            all.push(output(r, &self.conf.after));
        }
        Filtered::Now(Ok(all))
    }

    fn needs_memory(&self) -> bool {
        false
    }
}
