//! Settings that all modules have which pass requests on: `proxy_read_timeout`, `fastcgi_read_timeout` ...

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive as Line, Error};
use weir_proto::http1::HeaderId;
use weir_upstream::{Failures, Retry};

use crate::scope::Directive;
use crate::temp_file::TempPath;
use crate::template::Template;

/// What a location says of passing requests, whatever the protocol.
#[derive(Debug, Clone)]
pub struct Passing {
    /// `..._connect_timeout`
    pub connect_timeout: Duration,
    /// `..._send_timeout`
    pub send_timeout: Duration,
    /// `..._read_timeout`
    pub read_timeout: Duration,
    /// `..._buffering`
    pub buffering: bool,
    /// `..._request_buffering`
    pub request_buffering: bool,
    /// `..._ignore_client_abort`
    pub ignore_client_abort: bool,
    /// `..._intercept_errors`
    pub intercept_errors: bool,
    /// `..._pass_request_headers`
    pub pass_request_headers: bool,
    /// `..._pass_request_body`
    pub pass_request_body: bool,
    /// `..._pass_trailers`
    pub pass_trailers: bool,
    /// `..._force_ranges`
    pub force_ranges: bool,
    /// `..._buffer_size`: the longest head of an answer.
    pub buffer_size: u64,
    /// `..._buffers`: how many, how large.
    pub buffers: (u64, u64),
    /// `..._busy_buffers_size`
    pub busy_buffers_size: Option<u64>,
    /// `..._max_temp_file_size`
    pub max_temp_file_size: Option<u64>,
    /// `..._temp_file_write_size`
    pub temp_file_write_size: Option<u64>,
    /// `..._temp_path`
    pub temp_path: Arc<TempPath>,
    /// `..._next_upstream` and kin.
    pub retry: Retry,
    /// `..._bind`: the local address, and whether it may be another host's.
    pub bind: Option<(Template, bool)>,
    /// `..._socket_keepalive`
    pub socket_keepalive: bool,
    /// `..._socket_rcvbuf`
    pub socket_rcvbuf: Option<u64>,
    /// `..._socket_sndbuf`
    pub socket_sndbuf: Option<u64>,
    /// `..._store`
    pub store: Option<super::store::Store>,
    /// `..._store_access`
    pub store_access: u32,
    /// `..._cache` and kin.
    pub caching: Arc<super::cache::Caching>,
    /// `..._ssl_...`
    pub tls: Arc<super::tls::Settings>,
    /// `..._limit_rate`
    pub limit_rate: Option<Template>,
    /// `..._hide_header`
    pub hide: Vec<Vec<u8>>,
    /// `..._pass_header`
    pub pass: Vec<Vec<u8>>,
    /// What these two amount to.
    pub hidden: Names,
    /// `..._ignore_headers`
    pub ignored: Names,
}

/// A set of header names; asking for a well-known one costs a bit test.
#[derive(Debug, Clone, Default)]
pub struct Names {
    known: u64,
    others: Vec<Vec<u8>>,
}

impl Names {
    /// Adds a name, in any case.
    pub fn insert(&mut self, name: &[u8]) {
        match HeaderId::from_name(name) {
            HeaderId::Other => self.others.push(name.to_ascii_lowercase()),
            id => self.known |= bit(id),
        }
    }

    /// Takes a name out.
    pub fn remove(&mut self, name: &[u8]) {
        match HeaderId::from_name(name) {
            HeaderId::Other => self.others.retain(|n| !n.eq_ignore_ascii_case(name)),
            id => self.known &= !bit(id),
        }
    }

    /// Whether a header is in it.
    pub fn contains(&self, id: HeaderId, name: &[u8]) -> bool {
        match id {
            HeaderId::Other => self.others.iter().any(|n| n.eq_ignore_ascii_case(name)),
            id => self.known & bit(id) != 0,
        }
    }

    /// Whether a well-known header is in it.
    pub fn has(&self, id: HeaderId) -> bool {
        self.known & bit(id) != 0
    }
}

impl<'a> FromIterator<&'a [u8]> for Names {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(names: I) -> Names {
        let mut set = Names::default();
        for name in names {
            set.insert(name);
        }
        set
    }
}

fn bit(id: HeaderId) -> u64 {
    1u64.checked_shl(id as u32).unwrap_or(0)
}

impl Default for Passing {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Passing {
            connect_timeout: minute,
            send_timeout: minute,
            read_timeout: minute,
            buffering: true,
            request_buffering: true,
            ignore_client_abort: false,
            intercept_errors: false,
            pass_request_headers: true,
            pass_request_body: true,
            pass_trailers: false,
            force_ranges: false,
            buffer_size: 4096,
            buffers: (8, 4096),
            busy_buffers_size: None,
            max_temp_file_size: None,
            temp_file_write_size: None,
            temp_path: Arc::new(TempPath::default()),
            retry: Retry::default(),
            bind: None,
            socket_keepalive: false,
            socket_rcvbuf: None,
            socket_sndbuf: None,
            store: None,
            store_access: 0o600,
            caching: Arc::default(),
            tls: Arc::default(),
            limit_rate: None,
            hide: Vec::new(),
            pass: Vec::new(),
            hidden: Names::default(),
            ignored: Names::default(),
        }
    }
}

impl Passing {
    /// Memory for the body of an answer that waits for its client.
    pub fn memory(&self) -> usize {
        usize::try_from(self.buffers.0.saturating_mul(self.buffers.1)).unwrap_or(usize::MAX)
    }

    /// How large its temporary file may become.
    pub fn file(&self) -> u64 {
        self.max_temp_file_size.unwrap_or(1 << 30)
    }

    /// All simple directives of a block were read: sizes must fit each other, and the names of headers are
    /// put in order. `hidden` are the names that the protocol hides in any case.
    pub fn finish(&mut self, prefix: &str, hidden: &[&str]) -> Result<(), Error> {
        let largest = self.buffer_size.max(self.buffers.1);
        let complain = |text: String| Err(Error::emerg(text));
        if self.buffers.0 < 2 {
            return complain(format!("there must be at least 2 \"{prefix}_buffers\""));
        }
        let both = format!(
            "the maximum of the value of \"{prefix}_buffer_size\" and one of the \"{prefix}_buffers\""
        );
        if let Some(busy) = self.busy_buffers_size {
            let name = format!("\"{prefix}_busy_buffers_size\"");
            if busy < largest {
                return complain(format!("{name} must be equal to or greater than {both}"));
            }
            if busy > (self.buffers.0 - 1).saturating_mul(self.buffers.1) {
                return complain(format!(
                    "{name} must be less than the size of all \"{prefix}_buffers\" minus one buffer"
                ));
            }
        }
        if self.temp_file_write_size.is_some_and(|n| n < largest) {
            return complain(format!(
                "\"{prefix}_temp_file_write_size\" must be equal to or greater than {both}"
            ));
        }
        if self.max_temp_file_size.is_some_and(|n| n != 0 && n < largest) {
            return complain(format!(
                "\"{prefix}_max_temp_file_size\" must be equal to zero to disable temporary files \
                 usage or must be equal to or greater than {both}"
            ));
        }
        self.hidden = hidden.iter().map(|n| n.as_bytes()).collect();
        for name in &self.hide {
            self.hidden.insert(name);
        }
        for name in &self.pass {
            self.hidden.remove(name);
        }
        Ok(())
    }
}

/// `..._next_upstream`
pub fn failures(d: &Line) -> Failures {
    // The words themselves were judged by the tables of conf.
    d.args
        .iter()
        .filter_map(|w| Failures::word(&w.bytes.to_ascii_lowercase()))
        .fold(Failures::NONE, Failures::and)
}

/// Puts two tables of directives together.
pub const fn together<const N: usize>(a: &[Directive], b: &[Directive]) -> [Directive; N] {
    let mut all = [a[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < a.len() { a[i] } else { b[i - a.len()] };
        i += 1;
    }
    all
}

/// Those of a table that have these names.
pub const fn selected<const N: usize>(all: &[Directive], names: [&str; N]) -> [Directive; N] {
    let mut some = [all[0]; N];
    let mut i = 0;
    while i < N {
        let mut at = 0;
        while !is_same(all[at].name, names[i]) {
            at += 1;
        }
        some[i] = all[at];
        i += 1;
    }
    some
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while a.len() == b.len() && i < a.len() && a[i] == b[i] {
        i += 1;
    }
    a.len() == b.len() && i == a.len()
}

/// The directives that set a module's [`Passing`]: `passing_directives!(proxy, "proxy_")` for a module whose
/// settings have a field `passing`.
macro_rules! passing_directives {
    ($module:ident, $prefix:literal) => {{
        use weir_conf::Directive as Line;

        use $crate::modules::upstream::passing;
        use $crate::scope::{Directive, Scope, Set};

        macro_rules! one {
            ($name:literal, $help:literal, $set:expr) => {
                Directive {
                    name: concat!($prefix, $name),
                    help: $help,
                    set: Set::Simple(|s, d| {
                        s.once(d)?;
                        let set: fn(&mut passing::Passing, &Line) -> Result<(), weir_conf::Error> =
                            $set;
                        set(&mut Scope::change(&mut s.location.$module).passing, d)
                    }),
                }
            };
        }
        macro_rules! value {
            ($name:literal, $field:ident, $read:expr, $help:literal) => {
                one!($name, $help, |p, d| {
                    p.$field = $read(d)?;
                    Ok(())
                })
            };
        }
        macro_rules! list {
            ($name:literal, $help:literal, $clear:expr, $add:expr) => {
                Directive {
                    name: concat!($prefix, $name),
                    help: $help,
                    set: Set::Simple(|s, d| {
                        let first = s.first(d);
                        let p = &mut Scope::change(&mut s.location.$module).passing;
                        let clear: fn(&mut passing::Passing) = $clear;
                        let add: fn(&mut passing::Passing, &[u8]) = $add;
                        if first {
                            clear(p);
                        }
                        d.args.iter().for_each(|w| add(p, &w.bytes));
                        Ok(())
                    }),
                }
            };
        }
        &[
            value!(
                "connect_timeout",
                connect_timeout,
                Line::duration,
                "How long a connection may take."
            ),
            value!(
                "send_timeout",
                send_timeout,
                Line::duration,
                "How long the server may not take bytes."
            ),
            value!(
                "read_timeout",
                read_timeout,
                Line::duration,
                "How long the server may not send bytes."
            ),
            value!(
                "buffering",
                buffering,
                Line::flag,
                "Whether answers are read ahead of the client."
            ),
            value!(
                "request_buffering",
                request_buffering,
                Line::flag,
                "Whether bodies are read before they are passed."
            ),
            value!(
                "ignore_client_abort",
                ignore_client_abort,
                Line::flag,
                "Whether answers are read to their end for clients that left."
            ),
            value!(
                "intercept_errors",
                intercept_errors,
                Line::flag,
                "Whether error_page applies to answers."
            ),
            value!(
                "pass_request_headers",
                pass_request_headers,
                Line::flag,
                "Whether the client's headers are passed."
            ),
            value!(
                "pass_request_body",
                pass_request_body,
                Line::flag,
                "Whether the client's body is passed."
            ),
            value!(
                "force_ranges",
                force_ranges,
                Line::flag,
                "Whether ranges are cut out of answers that do not offer it."
            ),
            value!("buffer_size", buffer_size, Line::size, "The longest head of an answer."),
            value!(
                "buffers",
                buffers,
                Line::buffers,
                "Memory for an answer that is read ahead: how many buffers, how large."
            ),
            one!("busy_buffers_size", "Accepted: weir sends what it has.", |p, d| {
                p.busy_buffers_size = Some(d.size()?);
                Ok(())
            }),
            one!("max_temp_file_size", "How much of an answer may wait in a file.", |p, d| {
                p.max_temp_file_size = Some(d.size()?);
                Ok(())
            }),
            one!("temp_file_write_size", "How much is written to the file at once.", |p, d| {
                p.temp_file_write_size = Some(d.size()?);
                Ok(())
            }),
            Directive {
                name: concat!($prefix, "temp_path"),
                help: "Where temporary files are, with levels of subdirectories.",
                set: Set::Simple(|s, d| {
                    s.once(d)?;
                    let path = $crate::temp_file::TempPath::read(s.setup, d)?;
                    Scope::change(&mut s.location.$module).passing.temp_path = path;
                    Ok(())
                }),
            },
            Directive {
                name: concat!($prefix, "next_upstream"),
                help: "After which failures another server is asked.",
                set: Set::Simple(|s, d| {
                    Scope::change(&mut s.location.$module).passing.retry.on = passing::failures(d);
                    Ok(())
                }),
            },
            one!("next_upstream_tries", "How many servers are asked at most.", |p, d| {
                p.retry.tries = u32::try_from(d.number()?).unwrap_or(u32::MAX);
                Ok(())
            }),
            one!(
                "next_upstream_timeout",
                "How long servers are asked one after another.",
                |p, d| {
                    p.retry.timeout = d.duration()?;
                    Ok(())
                }
            ),
            Directive {
                name: concat!($prefix, "bind"),
                help: "The local address of connections to servers.",
                set: Set::Simple(|s, d| {
                    s.once(d)?;
                    let bind = passing::bind(s, d)?;
                    Scope::change(&mut s.location.$module).passing.bind = bind;
                    Ok(())
                }),
            },
            value!(
                "socket_keepalive",
                socket_keepalive,
                Line::flag,
                "Whether the kernel probes idle connections to servers."
            ),
            one!("socket_rcvbuf", "The kernel's receive buffer for answers.", |p, d| {
                p.socket_rcvbuf = Some(d.size()?);
                Ok(())
            }),
            one!("socket_sndbuf", "The kernel's send buffer for requests.", |p, d| {
                p.socket_sndbuf = Some(d.size()?);
                Ok(())
            }),
            Directive {
                name: concat!($prefix, "send_lowat"),
                help: "Accepted: Linux has no such limit.",
                set: Set::Simple(|s, d| {
                    s.once(d)?;
                    d.size()?;
                    let text = concat!("\"", $prefix, "send_lowat\" is not supported, ignored");
                    s.setup.warnings.push(d.warning(text));
                    Ok(())
                }),
            },
            Directive {
                name: concat!($prefix, "limit_rate"),
                help: "How fast answers are read ahead, in bytes a second.",
                set: Set::Simple(|s, d| {
                    s.once(d)?;
                    let Some(word) = d.args.first() else { return Ok(()) };
                    let rate = s.setup.template(d, word)?;
                    if rate.constant().is_some_and(|t| weir_conf::values::size(t).is_none()) {
                        return Err(d.problem("invalid value"));
                    }
                    Scope::change(&mut s.location.$module).passing.limit_rate = Some(rate);
                    Ok(())
                }),
            },
            list!(
                "hide_header",
                "A header of answers that clients do not see.",
                |p| p.hide.clear(),
                |p, name| p.hide.push(name.to_vec())
            ),
            list!(
                "pass_header",
                "A header that would be hidden, and is not.",
                |p| p.pass.clear(),
                |p, name| p.pass.push(name.to_vec())
            ),
            list!(
                "ignore_headers",
                "Headers of answers that are not acted upon.",
                |p| p.ignored = passing::Names::default(),
                |p, name| p.ignored.insert(name)
            ),
        ]
    }};
}
pub(crate) use passing_directives;

/// `..._bind ADDRESS [transparent] | off`
pub fn bind(
    s: &mut crate::scope::Scope<'_, '_>,
    d: &Line,
) -> Result<Option<(Template, bool)>, Error> {
    let Some(word) = d.args.first() else { return Ok(None) };
    if d.args.len() == 1 && word.is("off") {
        return Ok(None);
    }
    let transparent = match d.args.get(1) {
        None => false,
        Some(w) if w.is("transparent") => true,
        Some(w) => return Err(d.invalid("parameter", w)),
    };
    let value = s.setup.template(d, word)?;
    if value.constant().is_some_and(|t| super::connect::local(t).is_none()) {
        return Err(d.invalid("address", word));
    }
    Ok(Some((value, transparent)))
}
