//! PUT, DELETE, MKCOL, COPY and MOVE of files. nginx: ngx_http_dav_module.
//!
//! All work on the disk runs on a thread of the pool (`files::disk`). Log lines of that work come
//! back with its result.

use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::Method;
use weir_proto::uri::{self, Escape};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::files;
use crate::files::disk::{self, DiskError, DiskResult, Put, on_disk};
use crate::files::permissions;
use crate::modules::dav_ext;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod copy;
mod methods;
mod tree;

pub(crate) use copy::own_path;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    methods: Vec<Method>,
    /// The permission bits of files that are created.
    access: u32,
    create_full_put_path: bool,
    min_delete_depth: u64,
}

impl Default for Conf {
    fn default() -> Self {
        let (access, create_full_put_path, min_delete_depth) = (0o600, false, 0);
        Conf { methods: Vec::new(), access, create_full_put_path, min_delete_depth }
    }
}

impl Settings for Conf {}

impl Conf {
    /// The methods that may change files.
    pub(crate) fn methods(&self) -> &[Method] {
        &self.methods
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "dav_methods",
        help: "The enabled methods: PUT, DELETE, MKCOL, COPY, MOVE.",
        set: Set::Simple(methods),
    },
    setting!(
        "dav_access",
        CONF.access,
        permissions::read,
        "Permissions of files that are created."
    ),
    setting!(
        "create_full_put_path",
        CONF.create_full_put_path,
        Line::flag,
        "Whether PUT creates missing directories."
    ),
    setting!(
        "min_delete_depth",
        CONF.min_delete_depth,
        Line::number,
        "The minimum number of path elements for DELETE."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_dav", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).methods.is_empty()
}

/// Content phase handler.
#[expect(clippy::disallowed_methods, reason = "its methods are one handler")]
pub fn handler(r: &mut Request) -> Answer<'_> {
    if !CONF.of(r.conf()).methods.contains(&r.method) {
        return Answer::Now(Step::Next);
    }
    Answer::Later(match r.method {
        Method::Put => Boxed::new(|| put(r)),
        Method::Delete => Boxed::new(|| delete(r)),
        Method::Mkcol => Boxed::new(|| make_collection(r)),
        _ => Boxed::new(|| copy::handler(r)),
    })
}

async fn put(r: &mut Request) -> Step {
    if r.path.ends_with(b"/") {
        return refuse(r, 409, "cannot PUT to a collection");
    }
    if r.header_named(b"content-range").is_some() {
        return refuse(r, 501, "PUT with range is unsupported");
    }
    r.body.keep_in_file();
    if let Err(error) = r.read_body().await {
        return error.into();
    }
    let conf = CONF.of(r.conf());
    let to = match map_path(r).await {
        Ok(path) => path,
        Err(step) => return step,
    };
    let date = r.header_named(b"date").and_then(weir_proto::date::parse);
    let Some(body) = &r.body.file else {
        return refuse(r, 500, "PUT request body must be in a file");
    };
    let put = Put {
        from: body.file.path.clone(),
        to: disk::path(&to),
        access: conf.access,
        create_path: conf.create_full_put_path,
        date,
    };
    let (status, kept) = match on_disk(r, move |disk| disk.put(&put)).await {
        Ok(created) => (if created { 201 } else { 204 }, true),
        Err(error) => (error.status(), false),
    };
    if kept && let Some(body) = &r.body.file {
        body.file.keep();
    }
    if status == 201 {
        set_location(r);
    }
    Step::Status(status)
}

async fn delete(r: &mut Request) -> Step {
    if has_body(r) {
        return refuse(r, 415, "DELETE with body is unsupported");
    }
    let least = CONF.of(r.conf()).min_delete_depth;
    let depth = elements(&r.path);
    if depth < least {
        // As in nginx, the log line has the number of slashes instead of the depth.
        let slashes = r.path.iter().filter(|b| **b == b'/').count();
        return refuse(r, 409, &format!("insufficient URI depth:{slashes} to DELETE"));
    }
    let path = match map_path(r).await {
        Ok(path) => path,
        Err(step) => return step,
    };
    let (collection, level) = (r.path.ends_with(b"/"), depth_header(r));
    let deleted = on_disk(r, move |disk| disk.delete(&path, collection, level)).await;
    if deleted.is_ok() {
        dav_ext::remove_locks(r);
    }
    status(deleted.map(|()| 204))
}

/// Creates an empty file. An existing file is an error.
pub(crate) async fn create(r: &mut Request, path: &[u8]) -> DiskResult<()> {
    let (path, access) = (disk::path(path), CONF.of(r.conf()).access);
    on_disk(r, move |disk| disk.create(&path, access)).await
}

/// The number of elements of a path. A slash at the end does not begin one.
fn elements(path: &[u8]) -> u64 {
    let slashes = path.iter().filter(|b| **b == b'/').count() as u64;
    slashes - u64::from(path.ends_with(b"/") && slashes > 0)
}

async fn make_collection(r: &mut Request) -> Step {
    if has_body(r) {
        return refuse(r, 415, "MKCOL with body is unsupported");
    }
    if !r.path.ends_with(b"/") {
        return refuse(r, 409, "MKCOL can create a collection only");
    }
    let mut path = match map_path(r).await {
        Ok(path) => path,
        Err(step) => return step,
    };
    path.pop();
    let mode = disk::directory_access(CONF.of(r.conf()).access);
    let made = on_disk(r, move |disk| {
        disk.make_directory(&disk::path(&path), mode, DiskError::MissingParent)
    });
    let made = made.await;
    if made.is_ok() {
        set_location(r);
    }
    status(made.map(|()| 201))
}

fn status(outcome: DiskResult<u16>) -> Step {
    Step::Status(outcome.unwrap_or_else(DiskError::status))
}

fn refuse(r: &Request, status: u16, text: &str) -> Step {
    r.log(Level::Error, format_args!("{text}"));
    Step::Status(status)
}

fn has_body(r: &Request) -> bool {
    r.body.length.is_some_and(|length| length > 0) || r.body.chunked
}

pub(crate) async fn map_path(r: &mut Request) -> Result<Vec<u8>, Step> {
    let conf = r.conf();
    let mut path = Vec::new();
    conf.core.map_path_into(r, &mut path)?;
    files::check_links(r, &path).await?;
    Ok(path)
}

fn set_location(r: &mut Request) {
    let mut location = Vec::with_capacity(r.path.len());
    uri::escape(Escape::Uri, &r.path, &mut location);
    r.response.location = Some(location);
}

/// `Depth`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Zero,
    One,
    Infinity,
    Absent,
    Invalid,
}

pub(crate) fn depth_header(r: &Request) -> Depth {
    let Some(value) = r.header_named(b"depth") else { return Depth::Absent };
    match value {
        b"0" => Depth::Zero,
        b"1" => Depth::One,
        b"infinity" => Depth::Infinity,
        other => {
            let shown = weir_log::Bytes(other);
            let text = format_args!("client sent invalid \"Depth\" header: \"{shown}\"");
            r.log(Level::Error, text);
            Depth::Invalid
        }
    }
}

fn methods(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let conf = CONF.change(&mut s.location);
    if first {
        conf.methods.clear();
    }
    for word in &d.args {
        // The tables of `conf` accept only these methods and `off`.
        let method = Method::from_name(&word.bytes.to_ascii_uppercase());
        if method != Method::Other {
            conf.methods.push(method);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::complaint;

    #[test]
    fn elements_of_paths() {
        for (path, n) in [("/", 0), ("/a", 1), ("/a/", 1), ("/a/b", 2), ("/a/b/c/", 3)] {
            assert_eq!(elements(path.as_bytes()), n, "{path}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(complaint("dav_access user:x;"), "invalid value \"user:x\"");
        assert_eq!(complaint("dav_access rw;"), "invalid value \"rw\"");
        assert_eq!(complaint("dav_access user:rw group:rw all:r;"), "");
        assert_eq!(complaint("dav_methods PUT DELETE; dav_methods off;"), "");
    }
}
