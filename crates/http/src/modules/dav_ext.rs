//! PROPFIND and OPTIONS, for programs that look at a tree of files over WebDAV (RFC 4918). As the module nginx-dav-ext has
//! them; LOCK and UNLOCK are not built.

use bytes::Bytes;
use weir_conf::{Directive as Line, Error};
use weir_log::Level;
use weir_proto::date::imf_fixdate;
use weir_proto::http1::Method;
use weir_proto::uri::{Escape, escape, escape_html};

use crate::config::scope::{Directive, Scope, Set};
use crate::files;
use crate::files::directory::{self, Which};
use crate::modules::dav::{Depth, depth_header};
use crate::modules::{LocationConf, Module, Settings};
use crate::phases::{Answer, Step};
use crate::request::Request;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    methods: Vec<Method>,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "dav_ext_methods",
    help: "The methods that tell of files: PROPFIND, OPTIONS.",
    set: Set::Simple(methods),
}];

/// The module.
pub const MODULE: Module = Module { name: "http_dav_ext", directives: DIRECTIVES, init: |_| {} };

fn methods(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let mut methods = Vec::new();
    for word in &d.args {
        match Method::from_name(&word.bytes.to_ascii_uppercase()) {
            method @ (Method::Propfind | Method::Options) => methods.push(method),
            Method::Lock | Method::Unlock => {
                let text =
                    format!("\"{}\" is not built: weir has no locks of WebDAV", word.lossy());
                return Err(d.error_at(word, text));
            }
            _ if word.is("off") => {}
            _ => return Err(d.invalid("value", word)),
        }
    }
    Scope::change(&mut s.location.dav_ext).methods = methods;
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !conf.dav_ext.methods.is_empty()
}

/// The handler of the content phase.
pub fn handler(r: &mut Request) -> Answer<'_> {
    if !r.conf().dav_ext.methods.contains(&r.method) {
        return Answer::Now(Step::Next);
    }
    match r.method {
        Method::Options => Answer::Now(options(r)),
        _ => Answer::Later(Box::pin(find(r))),
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
    r.response.headers.set(b"DAV", b"1");
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
        let options = roxmltree::ParsingOptions { nodes_limit: MOST, ..Default::default() };
        let text = std::str::from_utf8(body).ok()?;
        let document = roxmltree::Document::parse_with_options(text, options).ok()?;
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

async fn find(r: &mut Request) -> Step {
    if let Err(status) = r.read_body().await {
        return Step::Status(status);
    }
    if r.body.len() > LONGEST || r.body.file.is_some() {
        return Step::Status(413);
    }
    let Some(asked) = Asked::read(&r.body.memory.concat()) else {
        r.log(Level::Error, format_args!("dav_ext: the body of PROPFIND is no XML"));
        return Step::Status(400);
    };
    let children = match depth_header(r) {
        Depth::Zero | Depth::Absent => false,
        Depth::One => true,
        Depth::Infinity => return Step::Status(403),
        Depth::Invalid => return Step::Status(400),
    };
    let mut path = Vec::new();
    if let Err(status) = r.conf().core.map_path_into(r, &mut path) {
        return Step::Status(status);
    }
    if path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
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
    response(&own, name, &stat.0, stat.is_directory(), &asked, &mut out);
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
            response(&href, &entry.name, &entry.info, entry.is_directory(), &asked, &mut out);
        }
    }
    out.extend_from_slice(b"</D:multistatus>\n");
    r.response.status = 207;
    r.response.content_type = b"text/xml".to_vec();
    r.response.charset = b"utf-8".to_vec();
    Step::Respond(Bytes::from(out))
}

/// What is told of one file or directory.
fn response(
    href: &[u8],
    name: &[u8],
    info: &weir_engine::FileInfo,
    directory: bool,
    asked: &Asked,
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
