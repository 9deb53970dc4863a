//! PROPFIND, PROPPATCH, OPTIONS, LOCK and UNLOCK, for clients that browse and change files over
//! WebDAV (RFC 4918). The directives are those of the module nginx-dav-ext, which has no PROPPATCH.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_conf::{Directive as Line, Error, values};
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::date::imf_fixdate;
use weir_proto::http1::Method;
use weir_proto::uri::{Escape, escape, escape_html};
use weir_values::zones::name_and_size;
use weir_zone::Use;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::files;
use crate::files::directory::{self, DirectoryEntry, EntryFilter};
use crate::files::disk::{Disk, on_disk, path as disk_path};
use crate::modules::dav::{self, Depth, depth_header};
use crate::modules::static_;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::core::CarryProperties;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod condition;
mod lock;
mod locks;
mod properties;
mod xml;

pub use lock::{check, remove_locks};
use locks::{Lock, Locks};
use properties::Property;
use xml::Name;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    methods: Vec<Method>,
    zones: Vec<Arc<Locks>>,
    /// The name of the zone, until all zones are known.
    named: Option<String>,
    locks: Option<Arc<Locks>>,
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let has_properties = CONF.of(&s.location).methods.contains(&Method::Proppatch);
    if has_properties != s.location.core.carry_properties.is_some() {
        let carry: CarryProperties = properties::carry;
        Scope::change(&mut s.location.core).carry_properties = has_properties.then_some(carry);
    }
    let Some(name) = &CONF.of(&s.location).named else { return Ok(()) };
    let found = s.setup.inputs.zones.find(name, TAG).map_err(Error::emerg)?;
    let conf = CONF.change(&mut s.location);
    conf.named = None;
    let locks = conf.zones.iter().find(|locks| locks.zone.name() == found.name());
    conf.locks = locks.cloned();
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "dav_ext_methods",
        help: "The enabled methods of WebDAV: PROPFIND, PROPPATCH, OPTIONS, LOCK, UNLOCK.",
        set: Set::Simple(methods),
    },
    Directive {
        name: "dav_ext_lock_zone",
        help: "Shared memory for locks, and their timeout.",
        set: Set::Simple(zone),
    },
    Directive {
        name: "dav_ext_lock",
        help: "The zone of the location's locks.",
        set: Set::Simple(lock_zone),
    },
];

const TAG: &str = "dav_ext";
/// The timeout of a lock without `timeout=`.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_dav_ext", directives: DIRECTIVES, finish, ..Module::NEW };

fn methods(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let mut methods = Vec::new();
    for word in &d.args {
        match Method::from_name(&word.bytes.to_ascii_uppercase()) {
            method @ (Method::Propfind
            | Method::Proppatch
            | Method::Options
            | Method::Lock
            | Method::Unlock) => methods.push(method),
            _ if word.is("off") => {}
            _ => return Err(d.invalid("value", word)),
        }
    }
    CONF.change(&mut s.location).methods = methods;
    Ok(())
}

/// `dav_ext_lock_zone zone=NAME:SIZE [timeout=TIME]`
fn zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (mut named, mut timeout) = (None, TIMEOUT);
    for word in &d.args {
        if let Some(value) = word.bytes.strip_prefix(b"zone=") {
            named = Some(name_and_size(d, word, value)?);
        } else if let Some(value) = word.bytes.strip_prefix(b"timeout=") {
            let secs = values::sec(value).filter(|secs| *secs > 0);
            timeout = Duration::from_secs(secs.ok_or_else(|| d.invalid("timeout value", word))?);
        } else {
            return Err(d.invalid("parameter", word));
        }
    }
    let (name, size) = named.ok_or_else(|| lacks_zone(d))?;
    let zones = s.setup.inputs.zones;
    if zones.find(&name, TAG).is_ok() {
        return Err(d.error(format!("duplicate zone \"{name}\"")));
    }
    let purpose = Use::of(TAG, locks::VALUES);
    let zone = zones.declare(&name, size, purpose).map_err(|text| d.error(text))?;
    let locks = Arc::new(Locks { zone, timeout });
    CONF.change(&mut s.location).zones.push(locks);
    Ok(())
}

fn lacks_zone(d: &Line) -> Error {
    d.error(format!("\"{}\" must have \"zone\" parameter", d.name.lossy()))
}

/// `dav_ext_lock zone=NAME`
fn lock_zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Err(lacks_zone(d)) };
    let name = word.bytes.strip_prefix(b"zone=").ok_or_else(|| d.invalid("parameter", word))?;
    let name = String::from_utf8_lossy(name).into_owned();
    CONF.change(&mut s.location).named = Some(name);
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).methods.is_empty()
}

/// Whether clients may set properties of files.
pub fn has_properties(conf: &LocationConf) -> bool {
    CONF.of(conf).methods.contains(&Method::Proppatch)
}

/// Whether a location has locks.
pub fn has_locks(conf: &LocationConf) -> bool {
    CONF.of(conf).locks.is_some()
}

/// Content phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    if !CONF.of(r.conf()).methods.contains(&r.method) {
        return Answer::Now(Step::Next);
    }
    match r.method {
        Method::Options => Answer::Now(options(r)),
        Method::Lock => Answer::Later(Boxed::new(move || lock::lock(r))),
        Method::Unlock => Answer::Now(lock::unlock(r)),
        Method::Proppatch => Answer::Later(Boxed::new(move || properties::change(r))),
        _ => Answer::Later(Boxed::new(move || find(r))),
    }
}

fn options(r: &mut Request) -> Step {
    let conf = CONF.of(r.conf());
    let mut allow = b"GET,HEAD".to_vec();
    for method in dav::CONF.of(r.conf()).methods().iter().chain(&conf.methods) {
        allow.push(b',');
        allow.extend_from_slice(method.name().unwrap_or_default().as_bytes());
    }
    r.response.status = 200;
    r.response.headers.set(b"DAV", if conf.locks.is_some() { b"1, 2" } else { b"1" });
    r.response.headers.set(b"Allow", &allow);
    Step::Respond(Bytes::new())
}

/// The live properties, by their names in `DAV:`. The server computes their values.
const NAMES: [&str; 7] = [
    "displayname",
    "getcontentlength",
    "getetag",
    "getlastmodified",
    "resourcetype",
    "lockdiscovery",
    "supportedlock",
];

/// The properties that a PROPFIND requests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Propfind {
    /// `allprop`: all properties.
    All,
    /// `propname`: the names of all properties.
    Names,
    /// `prop`: these properties.
    Some(Vec<Name>),
}

/// The maximum length of a body.
const LONGEST: u64 = 64 * 1024;
/// The maximum total length of the requested names. The answer repeats them for each file.
const LONGEST_NAMES: usize = 8 * 1024;
/// The longest answer to PROPFIND. It is in memory, and a short body may ask for much of each file.
const LONGEST_ANSWER: usize = 128 << 20;

impl Propfind {
    /// Parses a body. The error says why it is refused.
    fn read(body: &[u8]) -> Result<Propfind, &'static str> {
        if body.is_empty() {
            return Ok(Propfind::All);
        }
        let document = xml::document(body).ok_or("is no XML")?;
        let root = document.root_element();
        let named = |name: &str| root.children().find(|node| node.has_tag_name(("DAV:", name)));
        if !root.has_tag_name(("DAV:", "propfind")) || named("allprop").is_some() {
            return Ok(Propfind::All);
        }
        if named("propname").is_some() {
            return Ok(Propfind::Names);
        }
        let Some(prop) = named("prop") else { return Ok(Propfind::All) };
        let (mut names, mut size) = (Vec::new(), 0);
        for element in prop.children().filter(|node| node.is_element()) {
            let name = Name::of(element);
            size += name.size();
            if size > LONGEST_NAMES {
                return Err("asks for too many properties");
            }
            names.push(name);
        }
        Ok(Propfind::Some(names))
    }

    /// Whether a property of this name is requested.
    fn wants(&self, name: &Name) -> bool {
        match self {
            Propfind::All | Propfind::Names => true,
            Propfind::Some(names) => names.contains(name),
        }
    }

    /// Whether properties other than the live ones are requested.
    fn wants_properties(&self) -> bool {
        match self {
            Propfind::All | Propfind::Names => true,
            Propfind::Some(names) => names.iter().any(|name| name.of_dav().is_none()),
        }
    }
}

/// Reads the body of a request.
async fn body(r: &mut Request) -> Result<Vec<u8>, Step> {
    r.read_body().await?;
    if r.body.len() > LONGEST || r.body.file.is_some() {
        return Err(Step::Status(413));
    }
    Ok(r.body.memory.concat())
}

/// A longer body is parsed on a thread of the pool: the time grows with the square of its length.
const SHORT: usize = 1024;

/// Parses a body.
async fn parsed<T: Send + 'static>(
    r: &mut Request,
    body: Vec<u8>,
    parse: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Result<T, Step> {
    if body.len() <= SHORT {
        return Ok(parse(&body));
    }
    Ok(on_disk(r, move |_| Ok(parse(&body))).await?)
}

/// The path of the request's file or directory, without the slash of a directory.
async fn file_of(r: &mut Request) -> Result<Vec<u8>, Step> {
    let mut path = dav::map_path(r).await?;
    if path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    Ok(path)
}

async fn find(r: &mut Request) -> Step {
    let body = match body(r).await {
        Ok(body) => body,
        Err(step) => return step,
    };
    let asked = match parsed(r, body, Propfind::read).await {
        Ok(Ok(asked)) => asked,
        Err(step) => return step,
        Ok(Err(why)) => {
            r.log(Level::Error, format_args!("dav_ext: the body of PROPFIND {why}"));
            return Step::Status(400);
        }
    };
    let children = match depth_header(r) {
        Depth::Zero | Depth::Absent => false,
        Depth::One => true,
        Depth::Infinity => return Step::Status(403),
        Depth::Invalid => return Step::Status(400),
    };
    let path = match file_of(r).await {
        Ok(path) => path,
        Err(step) => return step,
    };
    let stat = match files::stat(r, &path).await {
        Ok(stat) => stat,
        Err(error) => {
            let status = if error.is_absent() {
                404
            } else if error.is_denied() {
                403
            } else {
                500
            };
            error.log(r, Level::Error, &path);
            return Step::Status(status);
        }
    };
    let own = r.path.clone();
    let name = own.trim_ascii_end().strip_suffix(b"/").unwrap_or(&own);
    let name = name.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
    let mut all = vec![(own.clone(), DirectoryEntry { name, info: stat.0 })];
    if children && stat.is_directory() {
        let entries = match directory::entries(r, &path, EntryFilter::USUAL).await {
            Ok(entries) => entries,
            Err(end) => return end,
        };
        let below = directory::run_for(r, entries.len(), move || hrefs(&own, entries)).await;
        match below {
            Ok(below) => all.extend(below),
            Err(end) => return end,
        }
    }
    let mut given = Vec::new();
    if asked.wants_properties() && has_properties(r.conf()) {
        let below = all.iter().skip(1).map(|(_, entry)| [&path, &b"/"[..], &entry.name].concat());
        let paths: Vec<_> = [path.clone()].into_iter().chain(below).collect();
        given = match on_disk(r, move |disk| Ok(properties_of(&paths, disk))).await {
            Ok(given) => given,
            Err(error) => return error.into(),
        };
    }
    let (locks, now) = (CONF.of(r.conf()).locks.clone(), r.event_loop.handle.now());
    let has_etag = r.conf().core.etag;
    let count = all.len();
    let write = move || {
        let mut out = begin_multistatus();
        let mut given = given.into_iter();
        for (href, entry) in &all {
            let locks = LockProperties::of(locks.as_deref(), now, href);
            let properties = given.next().unwrap_or_default();
            let told = Resource { href, entry, locks, properties, has_etag };
            told.write(&asked, &mut out);
            if out.len() > LONGEST_ANSWER {
                return None;
            }
        }
        end_multistatus(&mut out);
        Some(out)
    };
    match directory::run_for(r, count, write).await {
        Ok(Some(out)) => respond(r, 207, Bytes::from(out)),
        Ok(None) => {
            let limit = LONGEST_ANSWER >> 20;
            r.log(
                Level::Error,
                format_args!("dav_ext: the answer to PROPFIND exceeds {limit} MiB"),
            );
            Step::Status(507)
        }
        Err(end) => end,
    }
}

/// The files and directories below `own`, sorted, with their paths.
fn hrefs(own: &[u8], mut entries: Vec<DirectoryEntry>) -> Vec<(Vec<u8>, DirectoryEntry)> {
    entries.retain(|entry| entry.is_directory() || entry.is_file());
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let between: &[u8] = if own.ends_with(b"/") { b"" } else { b"/" };
    let placed = entries.into_iter().map(|entry| {
        let behind: &[u8] = if entry.is_directory() { b"/" } else { b"" };
        ([own, between, &entry.name, behind].concat(), entry)
    });
    placed.collect()
}

/// The properties that clients have set on each of these files. Blocks.
fn properties_of(paths: &[Vec<u8>], disk: &mut Disk) -> Vec<Vec<Property>> {
    let read = |path: &Vec<u8>| {
        let path = disk_path(path);
        properties::read(&path).unwrap_or_else(|error| {
            disk.properties_failed("read", &path, &error.into());
            Vec::new()
        })
    };
    paths.iter().map(read).collect()
}

fn begin_multistatus() -> Vec<u8> {
    b"<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n<D:multistatus xmlns:D=\"DAV:\">\n".to_vec()
}

fn end_multistatus(out: &mut Vec<u8>) {
    out.extend_from_slice(b"</D:multistatus>\n");
}

/// Answers with XML.
fn respond(r: &mut Request, status: u16, text: Bytes) -> Step {
    r.response.status = status;
    r.response.content_type = b"text/xml".to_vec();
    r.response.charset = b"utf-8".to_vec();
    Step::Respond(text)
}

fn write_href(path: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"<D:href>");
    let mut escaped = Vec::new();
    escape(Escape::Uri, path, &mut escaped);
    escape_html(&escaped, out);
    out.extend_from_slice(b"</D:href>");
}

/// The lock properties of a file.
struct LockProperties {
    /// Whether the location has locks.
    supported: bool,
    /// The locks that restrict a change of the file.
    locks: Vec<Lock>,
}

impl LockProperties {
    fn of(locks: Option<&Locks>, now: Instant, path: &[u8]) -> LockProperties {
        let supported = locks.is_some();
        let table = locks.and_then(|locks| locks.open(now));
        LockProperties { supported, locks: table.map_or_else(Vec::new, |table| table.over(path)) }
    }
}

/// Writes the supported kinds of locks, for `supportedlock`.
fn write_supported(out: &mut Vec<u8>) {
    for scope in ["exclusive", "shared"] {
        let text = format!(
            "<D:lockentry>\n<D:lockscope><D:{scope}/></D:lockscope>\n\
             <D:locktype><D:write/></D:locktype>\n</D:lockentry>\n"
        );
        out.extend_from_slice(text.as_bytes());
    }
}

/// A file or directory in the answer to PROPFIND.
struct Resource<'r> {
    href: &'r [u8],
    entry: &'r DirectoryEntry,
    locks: LockProperties,
    /// The properties that clients have set.
    properties: Vec<Property>,
    /// Whether answers have an entity tag (`etag on`).
    has_etag: bool,
}

impl Resource<'_> {
    fn write(&self, asked: &Propfind, out: &mut Vec<u8>) {
        out.extend_from_slice(b"<D:response>\n");
        write_href(self.href, out);
        let (mut found, mut there) = (Vec::new(), Vec::new());
        for property in NAMES {
            let name = Name { namespace: "DAV:".to_owned(), local: property.to_owned() };
            if !asked.wants(&name) || !self.has(property) {
                continue;
            }
            there.push(name);
            if *asked == Propfind::Names {
                found.extend_from_slice(format!("<D:{property}/>\n").as_bytes());
                continue;
            }
            found.extend_from_slice(format!("<D:{property}>").as_bytes());
            self.write_value(property, &mut found);
            found.extend_from_slice(format!("</D:{property}>\n").as_bytes());
        }
        for property in self.properties.iter().filter(|property| asked.wants(&property.name)) {
            there.push(property.name.clone());
            match asked {
                Propfind::Names => property.name.write(&mut found),
                _ => found.extend_from_slice(&property.element),
            }
        }
        let missing: Vec<Name> = match asked {
            Propfind::Some(names) => {
                names.iter().filter(|name| !there.contains(name)).cloned().collect()
            }
            _ => Vec::new(),
        };
        if !there.is_empty() || missing.is_empty() {
            out.extend_from_slice(b"\n<D:propstat>\n<D:prop>\n");
            out.extend_from_slice(&found);
            out.extend_from_slice(
                b"</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n",
            );
        }
        properties::write_status(&missing, 404, "", out);
        out.extend_from_slice(b"</D:response>\n");
    }

    /// Whether the resource has this live property.
    fn has(&self, property: &str) -> bool {
        match property {
            "getcontentlength" => !self.entry.is_directory(),
            "getetag" => self.has_etag && !self.entry.is_directory(),
            _ => true,
        }
    }

    fn write_value(&self, property: &str, out: &mut Vec<u8>) {
        let info = &self.entry.info;
        match property {
            "displayname" => escape_html(&self.entry.name, out),
            "getcontentlength" => out.extend_from_slice(info.len.to_string().as_bytes()),
            "getetag" => escape_html(&static_::etag(info.modified, info.len), out),
            "getlastmodified" => out.extend_from_slice(&imf_fixdate(info.modified)),
            "lockdiscovery" => {
                self.locks.locks.iter().for_each(|l| lock::write_active_lock(l, out))
            }
            "supportedlock" if self.locks.supported => write_supported(out),
            "resourcetype" if self.entry.is_directory() => {
                out.extend_from_slice(b"<D:collection/>");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn propfind_bodies_are_parsed() {
        let of = |text: &str| Propfind::read(text.as_bytes());
        assert_eq!(of(""), Ok(Propfind::All));
        assert_eq!(of("<a/>"), Ok(Propfind::All));
        assert_eq!(of("<propfind xmlns='DAV:'><propname/></propfind>"), Ok(Propfind::Names));
        let some = "<a:propfind xmlns:a='DAV:' xmlns:b='b'><a:prop><b:displayname/>\
                    <a:resourcetype/></a:prop></a:propfind>";
        let name = |namespace: &str, local: &str| Name {
            namespace: namespace.into(),
            local: local.into(),
        };
        let names = vec![name("b", "displayname"), name("DAV:", "resourcetype")];
        assert_eq!(of(some), Ok(Propfind::Some(names)));
        assert_eq!(of("<a>"), Err("is no XML"));
        let namespace = "x".repeat(1000);
        let many = |names: usize| {
            let names = "<b:c/>".repeat(names);
            of(&format!(
                "<propfind xmlns='DAV:' xmlns:b='{namespace}'><prop>{names}</prop></propfind>"
            ))
        };
        assert!(matches!(many(8), Ok(Propfind::Some(names)) if names.len() == 8));
        assert_eq!(many(9), Err("asks for too many properties"));
    }

    #[test]
    fn question() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(Propfind::Some(names)) = Propfind::read(bytes) {
                assert!(names.iter().all(|name| !name.local.is_empty()));
            }
        });
    }
}
