//! PROPFIND, OPTIONS, LOCK and UNLOCK, for programs that look at a tree of files over WebDAV (RFC 4918) and change it. The
//! directives are those of the module nginx-dav-ext.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roxmltree::{Document, Node, ParsingOptions};
use weir_conf::{Directive as Line, Error, values};
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::date::imf_fixdate;
use weir_proto::http1::Method;
use weir_proto::uri::{Escape, escape, escape_html};
use weir_values::zones::name_and_size;
use weir_zone::Use;

use crate::config::scope::{Directive, Scope, Set};
use crate::files;
use crate::files::directory::{self, Which};
use crate::modules::dav::{self, Depth, depth_header};
use crate::modules::{LocationConf, Module, Settings};
use crate::phases::{Answer, Step};
use crate::request::Request;

mod condition;
mod lock;
mod locks;

pub use lock::{check, gone};
use locks::{Lock, Locks};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    methods: Vec<Method>,
    zones: Vec<Arc<Locks>>,
    /// The name of the zone, until all zones are known.
    named: Option<String>,
    locks: Option<Arc<Locks>>,
}

impl Settings for Conf {
    fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
        let Some(name) = &s.location.dav_ext.named else { return Ok(()) };
        let found = s.setup.inputs.zones.find(name, TAG).map_err(Error::emerg)?;
        let conf = Scope::change(&mut s.location.dav_ext);
        conf.named = None;
        let locks = conf.zones.iter().find(|locks| locks.zone.name() == found.name());
        conf.locks = locks.cloned();
        Ok(())
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "dav_ext_methods",
        help: "The methods that tell of files and lock them: PROPFIND, OPTIONS, LOCK, UNLOCK.",
        set: Set::Simple(methods),
    },
    Directive {
        name: "dav_ext_lock_zone",
        help: "Shared memory for locks, and how long one lasts unless it is refreshed.",
        set: Set::Simple(zone),
    },
    Directive {
        name: "dav_ext_lock",
        help: "The zone of the locks that bind whoever changes files.",
        set: Set::Simple(lock_zone),
    },
];

const TAG: &str = "dav_ext";
/// How long a lock lasts where nothing is said.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The module.
pub const MODULE: Module = Module { name: "http_dav_ext", directives: DIRECTIVES, init: |_| {} };

fn methods(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let mut methods = Vec::new();
    for word in &d.args {
        match Method::from_name(&word.bytes.to_ascii_uppercase()) {
            method @ (Method::Propfind | Method::Options | Method::Lock | Method::Unlock) => {
                methods.push(method);
            }
            _ if word.is("off") => {}
            _ => return Err(d.invalid("value", word)),
        }
    }
    Scope::change(&mut s.location.dav_ext).methods = methods;
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
    let purpose = Use { tag: TAG, values: locks::VALUES, key: String::new() };
    let zone = zones.declare(&name, size, purpose).map_err(|text| d.error(text))?;
    let locks = Arc::new(Locks { zone, timeout });
    Scope::change(&mut s.location.dav_ext).zones.push(locks);
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
    Scope::change(&mut s.location.dav_ext).named = Some(name);
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !conf.dav_ext.methods.is_empty()
}

/// Whether a location has locks.
pub fn has_locks(conf: &LocationConf) -> bool {
    conf.dav_ext.locks.is_some()
}

/// The handler of the content phase.
pub fn handler(r: &mut Request) -> Answer<'_> {
    if !r.conf().dav_ext.methods.contains(&r.method) {
        return Answer::Now(Step::Next);
    }
    match r.method {
        Method::Options => Answer::Now(options(r)),
        Method::Lock => Answer::Later(Boxed::new(move || lock::lock(r))),
        Method::Unlock => Answer::Now(lock::unlock(r)),
        _ => Answer::Later(Boxed::new(move || find(r))),
    }
}

fn options(r: &mut Request) -> Step {
    let conf = r.conf();
    let mut allow = b"GET,HEAD".to_vec();
    for method in conf.dav.methods().iter().chain(&conf.dav_ext.methods) {
        allow.push(b',');
        allow.extend_from_slice(method.name().unwrap_or_default().as_bytes());
    }
    r.response.status = 200;
    r.response.headers.set(b"DAV", if conf.dav_ext.locks.is_some() { b"1, 2" } else { b"1" });
    r.response.headers.set(b"Allow", &allow);
    Step::Respond(Bytes::new())
}

/// What is asked about, by its name in `DAV:`.
const NAMES: [&str; 6] = [
    "displayname",
    "getcontentlength",
    "getlastmodified",
    "resourcetype",
    "lockdiscovery",
    "supportedlock",
];

/// What a PROPFIND asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    /// Everything.
    All,
    /// The names of what there is.
    Names,
    /// These.
    Some(Vec<&'static str>),
}

/// The most bytes of a question, and elements in it.
const LONGEST: u64 = 64 * 1024;
const MOST: u32 = 4096;

impl Asked {
    /// `None` for what is no XML.
    fn read(body: &[u8]) -> Option<Asked> {
        if body.is_empty() {
            return Some(Asked::All);
        }
        let document = document(body)?;
        let root = document.root_element();
        let named = |name: &str| root.children().find(|node| node.has_tag_name(("DAV:", name)));
        if !root.has_tag_name(("DAV:", "propfind")) || named("allprop").is_some() {
            return Some(Asked::All);
        }
        if named("propname").is_some() {
            return Some(Asked::Names);
        }
        let Some(prop) = named("prop") else { return Some(Asked::All) };
        let of = |name: &&str| prop.children().any(|node| node.has_tag_name(("DAV:", *name)));
        Some(Asked::Some(NAMES.into_iter().filter(of).collect()))
    }
}

/// A request's body; `None` for what is no XML. A prefix that is given an empty name is not: "Namespaces in XML 1.0",
/// section 2.2, which the parser lets pass.
fn document(body: &[u8]) -> Option<Document<'_>> {
    let options = ParsingOptions { nodes_limit: MOST, ..Default::default() };
    let document = Document::parse_with_options(std::str::from_utf8(body).ok()?, options).ok()?;
    let nameless = |node: Node<'_, '_>| {
        node.namespaces().any(|named| named.name().is_some() && named.uri().is_empty())
    };
    (!document.descendants().any(nameless)).then_some(document)
}

/// The body of a request that asks something.
async fn body(r: &mut Request) -> Result<Vec<u8>, Step> {
    r.read_body().await.map_err(Step::Status)?;
    if r.body.len() > LONGEST || r.body.file.is_some() {
        return Err(Step::Status(413));
    }
    Ok(r.body.memory.concat())
}

/// The file or directory that the request is about, without the slash of a directory.
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
    let Some(asked) = Asked::read(&body) else {
        r.log(Level::Error, format_args!("dav_ext: the body of PROPFIND is no XML"));
        return Step::Status(400);
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
    let mut out =
        b"<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n<D:multistatus xmlns:D=\"DAV:\">\n".to_vec();
    let own = r.path.clone();
    let name = own.trim_ascii_end().strip_suffix(b"/").unwrap_or(&own);
    let name = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let locks = Told::of(r, &own);
    response((&own, name), &stat.0, stat.is_directory(), &asked, &locks, &mut out);
    if children && stat.is_directory() {
        let mut entries = match directory::entries(r, &path, Which::USUAL).await {
            Ok(entries) => entries,
            Err(end) => return end,
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries.iter().filter(|entry| entry.is_directory() || entry.is_file()) {
            let between: &[u8] = if own.ends_with(b"/") { b"" } else { b"/" };
            let behind: &[u8] = if entry.is_directory() { b"/" } else { b"" };
            let href = [&own, between, &entry.name, behind].concat();
            let (of, locks) = ((&href[..], &entry.name[..]), Told::of(r, &href));
            response(of, &entry.info, entry.is_directory(), &asked, &locks, &mut out);
        }
    }
    out.extend_from_slice(b"</D:multistatus>\n");
    r.response.status = 207;
    r.response.content_type = b"text/xml".to_vec();
    r.response.charset = b"utf-8".to_vec();
    Step::Respond(Bytes::from(out))
}

/// What is told of locks.
struct Told {
    /// There can be some.
    supported: bool,
    /// Those that bind a file.
    locks: Vec<Lock>,
}

impl Told {
    fn of(r: &Request, path: &[u8]) -> Told {
        let locks = r.conf().dav_ext.locks.as_ref();
        let supported = locks.is_some();
        let table = locks.and_then(|locks| locks.open(r.event_loop.handle.now()));
        Told { supported, locks: table.map_or_else(Vec::new, |table| table.over(path)) }
    }
}

const SUPPORTED: &[u8] = b"<D:lockentry>\n<D:lockscope><D:exclusive/></D:lockscope>\n\
    <D:locktype><D:write/></D:locktype>\n</D:lockentry>\n";

/// What is told of one file or directory.
fn response(
    (href, name): (&[u8], &[u8]),
    info: &weir_engine::FileInfo,
    directory: bool,
    asked: &Asked,
    told: &Told,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"<D:response>\n<D:href>");
    let mut escaped = Vec::new();
    escape(Escape::Uri, href, &mut escaped);
    escape_html(&escaped, out);
    out.extend_from_slice(b"</D:href>\n<D:propstat>\n<D:prop>\n");
    for property in NAMES {
        let wanted = match asked {
            Asked::All | Asked::Names => true,
            Asked::Some(list) => list.contains(&property),
        };
        if !wanted || directory && property == "getcontentlength" {
            continue;
        }
        out.extend_from_slice(format!("<D:{property}").as_bytes());
        if *asked == Asked::Names {
            out.extend_from_slice(b"/>\n");
            continue;
        }
        out.push(b'>');
        match property {
            "displayname" => escape_html(name, out),
            "getcontentlength" => out.extend_from_slice(info.len.to_string().as_bytes()),
            "getlastmodified" => out.extend_from_slice(&imf_fixdate(info.modified)),
            "lockdiscovery" => told.locks.iter().for_each(|l| lock::describe(l, out)),
            "supportedlock" if told.supported => out.extend_from_slice(SUPPORTED),
            "resourcetype" if directory => out.extend_from_slice(b"<D:collection/>"),
            _ => {}
        }
        out.extend_from_slice(format!("</D:{property}>\n").as_bytes());
    }
    out.extend_from_slice(
        b"</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n</D:response>\n",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read() {
        let of = |text: &str| Asked::read(text.as_bytes());
        assert_eq!(of(""), Some(Asked::All));
        assert_eq!(of("<a/>"), Some(Asked::All));
        assert_eq!(of("<propfind xmlns='DAV:'><propname/></propfind>"), Some(Asked::Names));
        let some = "<a:propfind xmlns:a='DAV:' xmlns:b='b'><a:prop><b:displayname/>\
                    <a:resourcetype/></a:prop></a:propfind>";
        assert_eq!(of(some), Some(Asked::Some(vec!["resourcetype"])));
        assert_eq!(of("<a>"), None);
    }

    #[test]
    fn question() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Some(Asked::Some(names)) = Asked::read(bytes) {
                assert!(names.iter().all(|name| NAMES.contains(name)));
            }
        });
    }
}
