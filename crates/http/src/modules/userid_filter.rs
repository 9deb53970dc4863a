//! Identifies clients by a cookie. nginx: ngx_http_userid_filter_module.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_conf::{Directive as Line, Error, values};
use weir_log::Level;
use weir_proto::base64::{self, Alphabet};
use weir_proto::http1::HeaderId;
use weir_proto::{date, uri};

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::phases::Step;
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use crate::variables::VariableId;
use weir_values::Subject;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    mode: Mode,
    service: Option<u32>,
    name: Vec<u8>,
    domain: Vec<u8>,
    path: Vec<u8>,
    expires: CookieExpires,
    /// The attributes, as the cookie has them.
    flags: Vec<&'static str>,
    p3p: Vec<u8>,
    mark: Option<u8>,
    /// `$uid_reset`
    reset: Option<VariableId>,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            mode: Mode::Off,
            service: None,
            name: b"uid".to_vec(),
            domain: Vec::new(),
            path: b"; path=/".to_vec(),
            expires: CookieExpires::Session,
            flags: Vec::new(),
            p3p: Vec::new(),
            mark: None,
            reset: None,
        }
    }
}

impl Settings for Conf {}

/// `userid`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Off,
    /// `log`: received cookies are logged, and none is set.
    Log,
    V1,
    V2,
}

/// `userid_expires`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CookieExpires {
    /// At the end of the browser session.
    Session,
    /// At the latest possible date.
    Max,
    /// After this number of seconds.
    After(i64),
}

/// An identifier. The cookie has its bytes in the machine's order.
type Uid = [u32; 4];

/// The cookie of a client's request.
#[derive(Debug, Default, Clone)]
pub struct UserIdCookie {
    received: Option<Uid>,
    /// The text of the received cookie.
    cookie: Vec<u8>,
    set: Option<Uid>,
    /// `$uid_reset`: the received cookie is ignored.
    reset: bool,
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "userid",
        help: "Whether cookies are set: v1, on (version 2), log, off.",
        set: Set::Simple(mode),
    },
    setting!("userid_service", CONF.service, service, "The number of this server."),
    Directive { name: "userid_name", help: "The cookie's name.", set: Set::Simple(text) },
    Directive { name: "userid_domain", help: "The domain of the cookie.", set: Set::Simple(text) },
    Directive { name: "userid_path", help: "The path of the cookie.", set: Set::Simple(text) },
    setting!("userid_expires", CONF.expires, expires, "The lifetime of the cookie."),
    Directive {
        name: "userid_flags",
        help: "The cookie's flags: secure, httponly, samesite=strict|lax|none, off.",
        set: Set::Simple(flags),
    },
    Directive {
        name: "userid_p3p",
        help: "A `P3P` header that is sent with the cookie.",
        set: Set::Simple(text),
    },
    setting!("userid_mark", CONF.mark, mark, "A letter that marks the cookie as renewed."),
];

/// The state of a client's request, in the contexts of its family: a subrequest has the same identifier.
static CONTEXT: ContextKey<UserIdCookie> = ContextKey::passing();

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_userid", directives: DIRECTIVES, init, ..Module::NEW };

fn init(setup: &mut Setup<'_>) {
    setup.variables.define("uid_got", |r, out| {
        let conf = CONF.of(r.main_conf());
        if conf.mode == Mode::Off {
            return false;
        }
        let received = cookie_of(r).received;
        write_uid(&conf.name, received, out)
    });
    setup.variables.define("uid_set", |r, out| {
        let conf = CONF.of(r.main_conf());
        if conf.mode < Mode::V1 {
            return false;
        }
        let set = cookie_to_set(r, conf).set;
        write_uid(&conf.name, set, out)
    });
    setup.variables.define_changeable("uid_reset", true, |_, _| true);
}

/// Appends `name=` and the four numbers in hexadecimal.
fn write_uid(name: &[u8], uid: Option<Uid>, out: &mut Vec<u8>) -> bool {
    let Some(uid) = uid else { return false };
    out.extend_from_slice(name);
    out.push(b'=');
    out.extend_from_slice(digits(uid).as_bytes());
    true
}

fn digits(uid: Uid) -> String {
    let [a, b, c, d] = uid;
    format!("{a:08X}{b:08X}{c:08X}{d:08X}")
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).mode >= Mode::V1
}

/// Sets the cookie of a response.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if !r.is_main() {
        return Ok(());
    }
    let state = cookie_to_set(r, conf);
    let Some(uid) = state.set else { return Ok(()) };
    let mut cookie = conf.name.clone();
    cookie.push(b'=');
    match conf.mark.filter(|_| state.received.is_some() && !state.reset) {
        Some(mark) => {
            cookie.extend_from_slice(state.cookie.get(..TEXT).unwrap_or_default());
            cookie.extend_from_slice(&[mark, b'=']);
        }
        None => {
            base64::encode(Alphabet::Plain, &bytes(uid), &mut cookie);
            if let (Some(mark), [.., place, _]) = (conf.mark, cookie.as_mut_slice()) {
                *place = mark;
            }
        }
    }
    match conf.expires {
        CookieExpires::Session => {}
        CookieExpires::Max => cookie.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT"),
        CookieExpires::After(seconds) => {
            cookie.extend_from_slice(b"; expires=");
            let now = r.event_loop.handle.wall().secs;
            date::cookie(now.saturating_add(seconds), &mut cookie);
        }
    }
    cookie.extend_from_slice(&conf.domain);
    cookie.extend_from_slice(&conf.path);
    for flag in &conf.flags {
        cookie.extend_from_slice(flag.as_bytes());
    }
    r.response.headers.add(b"Set-Cookie", &cookie);
    if !conf.p3p.is_empty() {
        r.response.headers.add(b"P3P", &conf.p3p);
    }
    Ok(())
}

/// The length of the identifier in a cookie. A mark may follow, or garbage of old servers instead of
/// the padding. nginx: ngx_http_userid_get_uid.
const TEXT: usize = 22;

fn bytes(uid: Uid) -> Vec<u8> {
    uid.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// The cookie of a request, which is parsed once.
fn cookie_of(r: &mut Request) -> UserIdCookie {
    let family = r.family();
    let mut contexts = family.contexts.borrow_mut();
    CONTEXT.or_insert_with(&mut contexts, || read(r)).clone()
}

fn read(r: &Request) -> UserIdCookie {
    let name = &CONF.of(r.main_conf()).name;
    let mut lines = r.head().all(HeaderId::Cookie).map(|h| h.value.of(&r.buf));
    let found = lines.find_map(|line| Some((uri::list_value(line, name, b';')?, line)));
    let Some((cookie, line)) = found else { return UserIdCookie::default() };
    let complain = |what: &str| {
        let line = weir_log::Bytes(line);
        r.log(Level::Error, format_args!("client sent {what} userid cookie \"{line}\""));
    };
    let mut state = UserIdCookie { cookie: cookie.to_vec(), ..UserIdCookie::default() };
    let Some(text) = cookie.get(..TEXT) else {
        complain("too short");
        return state;
    };
    let numbers = base64::decode(Alphabet::Plain, text).map(|bytes| {
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| u32::from_ne_bytes(*word)).collect::<Vec<_>>()
    });
    match numbers.as_deref() {
        Some([a, b, c, d]) => state.received = Some([*a, *b, *c, *d]).filter(|uid| uid[3] != 0),
        _ => complain("invalid"),
    }
    state
}

/// Decides whether to set a cookie. A valid cookie is kept unless it must be reset or lacks the
/// mark.
fn cookie_to_set(r: &mut Request, conf: &Conf) -> UserIdCookie {
    let mut state = cookie_of(r);
    if state.set.is_some() {
        return state;
    }
    state.set = match state.received {
        Some(uid) if !is_reset(r, conf, uid) => {
            let marked = |mark| state.cookie.get(TEXT..TEXT + 2) == Some(&[mark, b'=']);
            (!conf.mark.is_none_or(marked)).then_some(uid)
        }
        received => {
            state.reset = received.is_some();
            Some(new_uid(r, conf))
        }
    };
    CONTEXT.set(&mut r.family().contexts.borrow_mut(), state.clone());
    state
}

/// Whether `$uid_reset` demands another identifier than the received one.
fn is_reset(r: &mut Request, conf: &Conf, received: Uid) -> bool {
    let reset = conf.reset.and_then(|id| r.variable_value(id)).unwrap_or_default();
    if reset == b"log" {
        let (name, text) = (String::from_utf8_lossy(&conf.name), digits(received));
        r.log(Level::Notice, format_args!("userid cookie \"{name}={text}\" was reset"));
    }
    !matches!(reset.as_slice(), b"" | b"0")
}

fn new_uid(r: &Request, conf: &Conf) -> Uid {
    /// Counters that the loops of this process share.
    static V1: AtomicU32 = AtomicU32::new(1);
    static V2: AtomicU32 = AtomicU32::new(FIRST_V2);
    let now = r.event_loop.handle.wall().secs as u32;
    if conf.mode == Mode::V1 {
        let number = V1.fetch_add(0x100, Ordering::Relaxed);
        return [conf.service.unwrap_or(0), now, start(), number];
    }
    let place = match conf.service {
        Some(service) => service.to_be(),
        None => match r.conn.local().ip() {
            Some(IpAddr::V4(ip)) => u32::from_ne_bytes(ip.octets()),
            Some(IpAddr::V6(ip)) => {
                let [.., a, b, c, d] = ip.octets();
                u32::from_ne_bytes([a, b, c, d])
            }
            None => 0,
        },
    };
    [place, now.to_be(), start().to_be(), next_v2(&V2).to_be()]
}

/// The first number of version 2, as in nginx.
const FIRST_V2: u32 = 0x0303_0302;

/// Takes the next number of version 2. After the largest one, the count begins again at
/// [`FIRST_V2`], as in nginx.
fn next_v2(counter: &AtomicU32) -> u32 {
    let next = |number: u32| Some(number.wrapping_add(0x100).max(FIRST_V2));
    let taken = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    taken.unwrap_or_else(|number| number)
}

/// Distinguishes the identifiers of processes: the start time and the process ID.
fn start() -> u32 {
    static START: OnceLock<u32> = OnceLock::new();
    *START.get_or_init(|| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        ((now.tv_nsec / 20_000) as u32) << 16 | (std::process::id() & 0xffff)
    })
}

fn mode(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let mode =
        d.choice(&[("off", Mode::Off), ("log", Mode::Log), ("v1", Mode::V1), ("on", Mode::V2)])?;
    let reset = s.setup.variables.refer(b"uid_reset");
    let conf = CONF.change(&mut s.location);
    (conf.mode, conf.reset) = (mode, Some(reset));
    Ok(())
}

fn service(d: &Line) -> Result<Option<u32>, Error> {
    Ok(Some(d.number()? as u32))
}

/// `userid_name`, `userid_domain`, `userid_path`, `userid_p3p`
fn text(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let text = s.setup.line_text(d, word, &word.bytes);
    let none = &*text == b"none";
    let conf = CONF.change(&mut s.location);
    match d.name.bytes.as_slice() {
        b"userid_name" => conf.name = text.into_owned(),
        b"userid_path" => conf.path = [b"; path=", &*text].concat(),
        b"userid_p3p" if none => conf.p3p.clear(),
        b"userid_p3p" => conf.p3p = text.into_owned(),
        _ if none => conf.domain.clear(),
        _ => conf.domain = [b"; domain=", &*text].concat(),
    }
    Ok(())
}

fn expires(d: &Line) -> Result<CookieExpires, Error> {
    match d.arg(0).map(|word| word.bytes.as_slice()).unwrap_or_default() {
        b"max" => Ok(CookieExpires::Max),
        b"off" => Ok(CookieExpires::Session),
        text => match values::sec(text).map(i64::try_from) {
            Some(Ok(0)) => Ok(CookieExpires::Session),
            Some(Ok(seconds)) => Ok(CookieExpires::After(seconds)),
            _ => Err(d.problem("invalid value")),
        },
    }
}

fn flags(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    /// The attributes, in their order in the cookie.
    const FLAGS: [(&str, &str); 5] = [
        ("secure", "; secure"),
        ("httponly", "; httponly"),
        ("samesite=strict", "; samesite=strict"),
        ("samesite=lax", "; samesite=lax"),
        ("samesite=none", "; samesite=none"),
    ];
    let first = s.first(d);
    let flags = &mut CONF.change(&mut s.location).flags;
    // The lines of a block are combined. `off` adds nothing.
    let mut chosen = if first { Vec::new() } else { std::mem::take(flags) };
    for word in &d.args {
        let named = FLAGS.iter().find(|(name, _)| word.bytes.eq_ignore_ascii_case(name.as_bytes()));
        let Some((_, text)) = named else { continue };
        // Of several values of SameSite, the first one holds.
        let same_site = |text: &str| text.starts_with("; samesite=");
        if !(same_site(text) && chosen.iter().any(|text| same_site(text))) {
            chosen.push(*text);
        }
    }
    let in_order = FLAGS.iter().map(|(_, text)| *text).filter(|text| chosen.contains(text));
    *flags = in_order.collect();
    Ok(())
}

fn mark(d: &Line) -> Result<Option<u8>, Error> {
    match d.arg(0).map(|word| word.bytes.as_slice()).unwrap_or_default() {
        b"off" => Ok(None),
        [mark] if mark.is_ascii_alphanumeric() || *mark == b'=' => Ok(Some(*mark)),
        _ => Err(d.problem("value must be \"off\" or a single letter, digit or \"=\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::complaint;

    #[test]
    fn an_identifier_survives_its_cookie() {
        let uid = [1, 0xffff_ffff, 7, 0x0303_0302];
        let mut text = Vec::new();
        base64::encode(Alphabet::Plain, &bytes(uid), &mut text);
        let back = base64::decode(Alphabet::Plain, &text[..TEXT]).unwrap();
        assert_eq!(back, bytes(uid));
        assert_eq!(digits(uid), "00000001FFFFFFFF0000000703030302");
    }

    #[test]
    fn numbers_differ_after_the_last_one() {
        let counter = AtomicU32::new(0xffff_ff02);
        let numbers = [(); 4].map(|()| next_v2(&counter));
        assert_eq!(numbers, [0xffff_ff02, 0x0303_0302, 0x0303_0402, 0x0303_0502]);
    }

    #[test]
    fn complaints_are_those_of_nginx() {
        let text =
            "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"";
        assert_eq!(complaint("userid_mark ab;"), text);
        assert_eq!(complaint("userid_expires x;"), "\"userid_expires\" directive invalid value");
    }
}
