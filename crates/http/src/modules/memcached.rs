//! Answers requests from memcached. nginx: ngx_http_memcached_module.

use std::fmt;

use bytes::Bytes;
use weir_conf::Directive as Line;
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::Method;
use weir_proto::memcached::{self, LineError};
use weir_proto::uri::{self, Escape};

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope};
use crate::config::table::table;
use crate::phases;
use crate::phases::{Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::site::settings::{Key, Settings};
use crate::upstream::driver;
use crate::upstream::pass::{self, By};
use crate::upstream::passing::upstream_directives;
use crate::upstream::{
    Answer, Doing, Extra, Found, Outgoing, OutgoingError, Protocol, Reader, Taken, UpstreamConf,
};
use weir_values::{Template, TemplateError};

/// Settings of a location.
#[derive(Debug, Clone)]
pub struct Conf {
    /// The settings that all protocols share.
    passing: UpstreamConf,
    /// `memcached_gzip_flag`
    gzip_flag: u64,
}

/// `memcached_pass`
#[derive(Debug, Clone)]
pub struct MemcachedPass {
    to: pass::Pass,
    /// `$memcached_key`
    key: Template,
}

impl Default for Conf {
    fn default() -> Self {
        let passing = UpstreamConf {
            buffering: false,
            intercept_errors: true,
            pass_request_headers: false,
            pass_request_body: false,
            force_ranges: true,
            ..UpstreamConf::default()
        };
        Conf { passing, gzip_flag: 0 }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = upstream_directives!(
    CONF, "memcached_": OWN;
    passing only(
        "bind",
        "socket_keepalive",
        "connect_timeout",
        "send_timeout",
        "buffer_size",
        "read_timeout",
        "next_upstream",
        "next_upstream_tries",
        "next_upstream_timeout",
    )
);

const OWN: &[Directive] = table! { "memcached_", settings:
    "pass": once(|s, d| {
        let to = pass::Pass::read(s, d, None)?;
        let key = key(s.setup).map_err(|error| d.error(error))?;
        pass::handle(s, CONTENT.with(MemcachedPass { to, key }));
        Ok(())
    }), "The memcached server, or group of servers, that is asked for `$memcached_key`.";
    "gzip_flag": value(gzip_flag, Line::number),
        "The bit in the flags of a value that marks it as compressed with gzip.";
};

fn key(setup: &mut Setup<'_>) -> Result<Template, TemplateError> {
    Template::new(&mut setup.variables, b"$memcached_key")
}

fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Conf {
    CONF.change(&mut s.location)
}

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_memcached", directives: DIRECTIVES, ..Module::NEW };

/// The content handler.
static CONTENT: ContentHandler<MemcachedPass> = ContentHandler {
    module: "memcached",
    in_limit_except: false,
    optional: false,
    run: |r, settings| phases::Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `memcached_pass`.
fn handler<'a>(r: &'a mut Request, pass: &'static MemcachedPass) -> Later<'a> {
    Boxed::new(move || async move {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Step::Status(405);
        }
        if let Err(error) = r.discard_received() {
            return error.into();
        }
        if let Err(error) = r.send_continue().await {
            return error.into();
        }
        let conf = CONF.of(r.conf());
        r.set_content_type();
        let target = match pass.to.target(r, By::Configuration) {
            Ok(target) => target,
            Err(step) => return step,
        };
        let mut protocol =
            Memcached { conf, pass, key: Vec::new(), rest: RemainingValue::default() };
        driver::serve(r, &conf.passing, target, &mut protocol).await
    })
}

/// Why an answer of memcached is invalid.
enum MemcachedError {
    /// The line is not an answer to `get`.
    Line(String),
    /// A word of the line is invalid.
    Word {
        /// The kind of the word.
        what: &'static str,
        /// The line.
        line: String,
        /// The requested key.
        key: String,
    },
}

impl fmt::Display for MemcachedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemcachedError::Line(line) => write!(f, "memcached sent invalid response: \"{line}\""),
            MemcachedError::Word { what, line, key } => {
                write!(f, "memcached sent invalid {what} in response \"{line}\" for key \"{key}\"")
            }
        }
    }
}

struct Memcached {
    conf: &'static Conf,
    pass: &'static MemcachedPass,
    key: Vec<u8>,
    rest: RemainingValue,
}

/// The part of an answer that was not received yet.
#[derive(Default)]
struct RemainingValue {
    /// Remaining bytes of the value.
    value: u64,
    /// Received bytes of the trailer. `None` if there is no value.
    end: Option<usize>,
}

impl RemainingValue {
    fn is_over(&self) -> bool {
        self.value == 0 && self.end.is_none_or(|seen| seen == memcached::END.len())
    }
}

impl Protocol for Memcached {
    type Reader = Self;

    fn reader(&mut self) -> &mut Self {
        self
    }

    fn scheme(&self) -> &'static str {
        "memcached://"
    }

    fn sends_body(&self) -> bool {
        false
    }

    fn names_itself(&self) -> bool {
        false
    }

    fn is_missing(&self, status: u16) -> bool {
        status == 404
    }

    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError> {
        let key = self.pass.key.eval(r).into_owned();
        if key.is_empty() {
            return Err(OutgoingError::NoKey);
        }
        self.key.clear();
        uri::escape(Escape::Memcached, &key, &mut self.key);
        let bytes = Bytes::from([b"get ", self.key.as_slice(), b"\r\n"].concat());
        Ok(Outgoing { bytes, ..Outgoing::default() })
    }

    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}
}

impl Reader for Memcached {
    type Error = MemcachedError;

    fn restart(&mut self) {
        self.rest = RemainingValue::default();
    }

    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, MemcachedError> {
        let Some(end) = memchr::memchr(b'\n', buf) else { return Ok(Found::More) };
        let line = || weir_log::Bytes(buf[..end].trim_ascii_end()).to_string();
        let wrong = |what: &'static str| {
            let key = weir_log::Bytes(&self.key).to_string();
            MemcachedError::Word { what, line: line(), key }
        };
        let mut answer = Answer { end: end + 1, keepalive: true, ..Answer::default() };
        match memcached::line(&buf[..end], &self.key) {
            Ok(memcached::ValueLine::Missing) => {
                let key = weir_log::Bytes(&self.key);
                let doing = Doing::ReadingHead.text();
                let text = format_args!("key: \"{key}\" was not found by memcached {doing}");
                r.log(Level::Info, text);
                (answer.status, answer.length) = (404, Some(0));
            }
            Ok(memcached::ValueLine::Value(flags, length)) => {
                if self.conf.gzip_flag > 0 {
                    let flags = weir_conf::values::number(flags).ok_or_else(|| wrong("flags"))?;
                    if flags & self.conf.gzip_flag != 0 {
                        r.response.content_encoding = Some(b"gzip".to_vec());
                    }
                }
                (answer.status, answer.length) = (200, Some(length));
                self.rest = RemainingValue { value: length, end: Some(0) };
            }
            Err(LineError::Key) => return Err(wrong("key")),
            Err(LineError::Length) => return Err(wrong("length")),
            Err(LineError::Invalid) => return Err(MemcachedError::Line(line())),
        }
        Ok(Found::Head(answer))
    }

    fn has_body(&mut self, _: &Request, _: &Answer) -> bool {
        !self.rest.is_over()
    }

    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, MemcachedError> {
        let value = usize::try_from(self.rest.value).map_or(buf.len(), |n| n.min(buf.len()));
        self.rest.value -= value as u64;
        let behind = buf.get(value..).unwrap_or_default();
        let seen = self.rest.end.unwrap_or(memcached::END.len());
        let found = memcached::end(behind, seen);
        let more = found.is_none_or(|length| length < behind.len());
        self.rest.end = Some(seen + found.unwrap_or(0));
        buf.truncate(value);
        if more {
            // The value is complete, so only the connection is not reused.
            let extra = Extra { text: "memcached sent invalid trailer", level: Level::Error };
            return Ok(Taken { done: true, extra: Some(extra) });
        }
        Ok(Taken { done: self.rest.is_over(), extra: None })
    }

    fn ends_with_connection(&self) -> bool {
        false
    }
}
